//! C interface of `terrace-model` for the QEMU timing plugin.
