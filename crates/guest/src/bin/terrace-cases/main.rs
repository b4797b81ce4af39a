//! Fault cases: a target that misbehaves, and a driver that runs it unmanaged and managed and
//! compares what it printed.
//!
//! `terrace-cases target MODE` is the target; `terrace-cases drive TERRACE [CASE...]` the driver.
//! `terrace-cases list` names the cases. The driver prints one line a case: `ok NAME`, `FAILED NAME: why` or `skipped NAME: why`.

mod driver;
mod target;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let code = match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["target", mode] => target::run(mode),
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
