//! Links without a C library, at an address that programs do not use: low enough for the kernel's
//! own mappings to stay above, and with room below it for the code cache (`cache::BASE`), which
//! must reach it by 32-bit jumps.

fn main() {
    for argument in ["-nostartfiles", "-nostdlib", "-static", "-no-pie", "-fuse-ld=bfd"] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    println!("cargo:rustc-link-arg-bins=-Wl,-Ttext-segment=0x700040000000,--build-id=none,-z,noexecstack");
    println!("cargo:rerun-if-changed=build.rs");
}
