//! The study of software-defined memory again, on far memory: `bench/far/study.sh`, or `make
//! bench-far-study`.
//!
//! ```text
//! far-study work BACKING KERNEL THOUSANDTHS DRAM_MIB FOLDER   one measurement, one line of JSON
//! far-study drive FOLDER --lines FILE [--quick] [--only KERNEL,...] [--dram MIB] [--seconds N]
//!                                                             all of them, interleaved; a line each is added to FILE
//! far-study tables FILE...                                    Markdown of what was measured
//! far-study undo FOLDER                                       takes down what a killed `drive` left
//! ```
//! `FAR_STUDY_THREADS` says how many threads compute, as many as there are CPUs unless set. After
//! "Evaluation of Intel Memory Drive Technology Performance for Scientific Applications"
//! (MCHPC'18). Every result is checked, so a fast answer that is wrong is no answer.

mod drive;
mod fft;
mod gemm;
mod kernel;
mod lu;
mod memory;
mod noise;
#[path = "../shared/peers.rs"]
mod peers;
mod plan;
mod poly;
mod product;
mod results;
#[path = "../shared/spent.rs"]
mod spent;
mod statements;
mod stream;
mod tables;
mod threads;
mod work;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["work", backing, kernel, factor, dram, folder] => {
            work::run(backing, kernel, factor, dram, folder).map(|line| println!("{line}"))
        }
        ["drive", folder, rest @ ..] => drive::run(folder, rest),
        ["tables", files @ ..] if !files.is_empty() => tables::print(files),
        ["undo", folder] => drive::undo(folder),
        _ => Err("work BACKING KERNEL THOUSANDTHS DRAM_MIB FOLDER | drive FOLDER --lines FILE | \
            tables FILE... | undo FOLDER"
            .to_owned()),
    };
    if let Err(error) = result {
        eprintln!("far-study: {error}");
        std::process::exit(1);
    }
}
