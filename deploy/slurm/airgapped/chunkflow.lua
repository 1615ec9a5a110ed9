-- module load chunkflow/0.2.0   (Lmod)
-- Copy this file to a folder on MODULEPATH as chunkflow/VERSION.lua.
help([[Chunked inference with 3D networks for volumes too large for one machine.
chunkflow --help lists the commands.]])
whatis("Name: chunkflow")
whatis("Version: " .. myModuleVersion())
whatis("Description: chunked inference with 3D networks for large volumes")
conflict("chunkflow")
-- The folder given to install.sh.
local prefix = pathJoin("/shared/apps/chunkflow", myModuleVersion())
prepend_path("PATH", pathJoin(prefix, "bin"))
setenv("PYTHONNOUSERSITE", "1")
