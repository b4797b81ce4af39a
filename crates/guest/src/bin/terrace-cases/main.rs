//! Fault cases: a target that misbehaves, and a driver that runs it unmanaged and managed and
//! compares what it printed.
//!
//! `terrace-cases target MODE` is the target; `terrace-cases drive TERRACE [CASE...]` the driver.
//! `terrace-cases list` names the cases. The driver prints one line a case: `ok NAME`, `FAILED
//! NAME: why` or `skipped NAME: why`.
//!
//! A managed target waits, within bounds, until it sees its own pages move, and then does what the
//! case is about. So that happens while pages are moved, however fast the machine is, and a case in
//! which nothing is moved fails.

mod checks;
mod driver;
mod events;
mod kills;
mod kinds;
mod memory;
mod refusals;
mod target;
mod trouble;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let code = match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["target", mode, rest @ ..] => target::run(mode, rest),
        ["list"] => {
            driver::names().for_each(|name| println!("{name}"));
            0
        }
        ["drive", terrace, only @ ..] => driver::drive(terrace, only),
        _ => {
            eprintln!("usage: terrace-cases target MODE | drive TERRACE [CASE...] | list");
            2
        }
    };
    std::process::exit(code);
}
