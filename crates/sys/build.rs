//! Feature `mpi`: compiles the few calls of MPI's C interface with its own compiler wrapper.

use std::process::Command;

fn run(program: &str, words: &[&str]) -> String {
    let remedy = "install Open MPI's development files, or build without feature mpi";
    match Command::new(program).args(words).output() {
        Ok(run) if run.status.success() => String::from_utf8_lossy(&run.stdout).into_owned(),
        Ok(run) => panic!("{program}: {}; {remedy}", String::from_utf8_lossy(&run.stderr)),
        Err(error) => panic!("{program}: {error}; {remedy}"),
    }
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/mpi/calls.c");
    if std::env::var_os("CARGO_FEATURE_MPI").is_none() {
        return;
    }
    let folder = std::env::var("OUT_DIR").expect("cargo sets it");
    let (object, library) = (format!("{folder}/calls.o"), format!("{folder}/libterracempi.a"));
    run("mpicc", &["-O2", "-Wall", "-Werror", "-fPIC", "-c", "src/mpi/calls.c", "-o", &object]);
    run("ar", &["crs", &library, &object]);
    println!("cargo:rustc-link-search=native={folder}");
    println!("cargo:rustc-link-lib=static=terracempi");
    for path in run("mpicc", &["--showme:libdirs"]).split_whitespace() {
        println!("cargo:rustc-link-search=native={path}");
    }
    for name in run("mpicc", &["--showme:libs"]).split_whitespace() {
        println!("cargo:rustc-link-lib={name}");
    }
}
