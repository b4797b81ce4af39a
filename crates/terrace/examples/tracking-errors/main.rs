//! How far live `hyplacer`'s page classes and write rate are off the truth.
//!
//! ```text
//! tracking-errors [--machine M] [--steps N] [--json] WORKLOAD...
//! ```
//! Each workload runs in the lab under the engine with the live trackers and `hyplacer`, whose
//! moves are not made, so that placement stays what first touch made it. After each step every
//! page's class (cold, read-intensive, write-intensive: what stands for the paper's R and D bits)
//! is kept. The timing plugin meanwhile counts every access by page in short windows. Here both are
//! laid side by side: over the policy's delay before each decision, was the page accessed, was it
//! written, and how many bytes went to each node.
//!
//! The same program is carried into the guest, where `guest` is its first argument.
#![allow(clippy::unwrap_used)] // a check that fails may panic

mod guest;
mod host;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.split_first() {
        Some((first, rest)) if first == "guest" => guest::run(rest),
        _ => host::run(&arguments),
    };
    if let Err(why) = result {
        eprintln!("tracking-errors: {why}");
        std::process::exit(1);
    }
}
