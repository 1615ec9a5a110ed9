"""Read, write and cache the blocks of volumes, in all formats that store blocks."""
