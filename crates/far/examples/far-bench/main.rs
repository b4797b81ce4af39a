//! Far memory beside the kernel's swap and a mapped file: `bench/far/run.sh`, or `make bench-far`.
//!
//! ```text
//! far-bench work BACKING CASE SIZE_MIB DRAM_MIB FOLDER     one measurement, one line of JSON
//! far-bench drive FOLDER [--quick] [--json FILE]           all of them, interleaved; sets up and takes down the peers
//! ```
//! `FAR_BENCH_UNIT_KIB` and `FAR_BENCH_WINDOW_KIB` set those of far memory, `FAR_BENCH_NO_SUMS`
//! does without checksums, `FAR_BENCH_NOT_BESIDE` leaves it to the kernel where who waits goes on.
//! Each word touched is checked, so a fast answer that is wrong is no answer.

mod drive;
#[path = "../shared/peers.rs"]
mod peers;
#[path = "../shared/spent.rs"]
mod spent;
mod work;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["work", backing, case, size, dram, folder] => work::run(backing, case, size, dram, folder),
        ["drive", folder, rest @ ..] => drive::run(folder, rest),
        _ => Err("far-bench work BACKING CASE SIZE_MIB DRAM_MIB FOLDER | drive FOLDER \
                [--quick] [--json FILE]"
            .to_owned()),
    };
    if let Err(error) = result {
        eprintln!("far-bench: {error}");
        std::process::exit(1);
    }
}
