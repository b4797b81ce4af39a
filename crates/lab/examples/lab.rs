//! The lab without the `terrace` program: `cargo run --release --example lab -- setup | run ... -- CMD`.

use std::io::Write;
use terrace_lab::{JobSpec, Lab, Progress};

struct Stderr;

impl Progress for Stderr {
    fn step(&self, what: &str) {
        eprintln!("{what}");
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(status) => std::process::exit(status),
        Err(why) => {
            eprintln!("lab: {why}");
            std::process::exit(1);
        }
    }
}

fn run(args: &[String]) -> Result<i32, Box<dyn std::error::Error>> {
    let cut = args.iter().position(|a| a == "--").unwrap_or(args.len());
    let (options, command) = (&args[..cut], args.get(cut + 1..).unwrap_or_default());
    let value = |name: &str| options.iter().position(|a| a == name).and_then(|i| options.get(i + 1)).cloned();
    let machine_name = value("--machine").unwrap_or_else(|| "lab-cxl".into());
    let machine = match terrace_machine::preset(&machine_name) {
        Some(machine) => machine,
        None => terrace_machine::Machine::from_toml(&std::fs::read_to_string(&machine_name)?, &machine_name)?,
    };
    let vcpus = value("--vcpus").map(|v| v.parse()).transpose()?;
    let lab = Lab::open(&value("--lab").map_or_else(Lab::default_dir, Into::into))?;
    let bench = lab.bench(&machine, vcpus, &Stderr)?;
    match options.first().map(String::as_str) {
        Some("setup") => {
            eprintln!("ready, booted in {:.1} s", bench.snapshot().boot_wall_seconds());
            Ok(0)
        }
        Some("run") => {
            let mut spec = JobSpec::of_host_command(command, std::env::var("PATH").ok().as_deref())?;
            let given = options.windows(2).filter(|w| w[0] == "--env").filter_map(|w| w[1].split_once('='));
            spec.env.extend(given.map(|(k, v)| (k.to_string(), v.to_string())));
            let result = bench.run(&spec)?;
            std::io::stdout().write_all(&result.stdout)?;
            std::io::stderr().write_all(&result.stderr)?;
            for warning in &result.reply.warnings {
                eprintln!("guest: {warning}");
            }
            eprintln!("{:?}, {:.6} guest s, {:.1} wall s", result.reply.outcome, result.seconds(), result.wall_seconds);
            Ok(match result.reply.outcome {
                terrace_lab::wire::Outcome::Exited { status } => status,
                _ => 1,
            })
        }
        _ => Err("usage: lab setup|run [--machine M] [--vcpus N] [--lab DIR] [-- CMD ...]".into()),
    }
}
