"""The precomputed format of Neuroglancer, and graphene."""
