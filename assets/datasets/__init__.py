"""One folder per dataset; its ``defs.yaml`` is all there is to adding one."""
