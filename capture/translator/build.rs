//! Links without a C library, at an address that programs do not use: low enough for the kernel's
//! own mappings to stay above, high enough for sanitizers, which take most of what lies below
//! 0x7e8000000000 for themselves (compiler-rt, `tsan_platform.h`), and with space below it for the
//! code cache (`cache::BASE`), which must reach it by 32-bit jumps.

fn main() {
    for argument in ["-nostartfiles", "-nostdlib", "-static", "-no-pie", "-fuse-ld=bfd"] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    println!("cargo:rustc-link-arg-bins=-Wl,-Ttext-segment=0x7e9040000000,--build-id=none,-z,noexecstack");
    println!("cargo:rerun-if-changed=build.rs");
}
