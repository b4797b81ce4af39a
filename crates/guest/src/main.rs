//! `terrace-guest`: init of the lab's guest when it is process 1, else one of its calibration programs.

use std::path::Path;
use std::time::Duration;
use terrace_guest::calibrate::{self, Sweep};
use terrace_guest::mailbox::Mailbox;
use terrace_guest::wire::State;
use terrace_guest::{init, job, kernel};

/// Guest time between two looks into the mailbox.
const POLL: Duration = Duration::from_millis(2);

fn main() {
    if std::process::id() == 1 {
        if let Err(e) = serve() {
            // The console is the only way left to say anything; the host quotes it.
            let _ = std::fs::write("/dev/console", format!("terrace-guest: {e}\n"));
        }
        let e = kernel::power_off();
        let _ = std::fs::write("/dev/console", format!("terrace-guest: power off: {e}\n"));
        return;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Err(why) = program(&args) {
        eprintln!("terrace-guest: {why}");
        std::process::exit(2);
    }
}

fn serve() -> std::io::Result<()> {
    init::boot()?;
    let mailbox = Mailbox::open(Path::new("/sys"))?;
    mailbox.announce();
    while !mailbox.has_news() {
        std::thread::sleep(POLL);
    }
    match mailbox.take_job().and_then(|archive| job::run(&archive, mailbox.room())) {
        Ok(reply) => {
            if !mailbox.put(State::Done, &reply) {
                mailbox.refuse("the reply does not fit the mailbox".into());
            }
        }
        Err(e) => mailbox.refuse(e.to_string()),
    }
    Ok(())
}

fn program(args: &[String]) -> Result<(), String> {
    let number = |i: usize| -> Result<u64, String> {
        args.get(i).and_then(|a| a.parse().ok()).ok_or_else(|| "usage: chase|read|triad NODE MIB COUNT [CPUS]".to_string())
    };
    let (node, bytes, count) = (number(1)? as u32, (number(2)? as usize) << 20, number(3)?);
    let kind = match args[0].as_str() {
        "chase" => {
            let ns = calibrate::chase(node, bytes, count).map_err(|e| e.to_string())?;
            println!("{{\"latency_ns\":{ns:.3}}}");
            return Ok(());
        }
        "read" => Sweep::Read,
        "triad" => Sweep::Triad,
        other => return Err(format!("unknown program {other}")),
    };
    let cpus = number(4)? as usize;
    let rate = calibrate::sweep(kind, node, bytes, count as u32, cpus.max(1)).map_err(|e| e.to_string())?;
    println!("{{\"bandwidth_bytes_per_s\":{rate:.0}}}");
    Ok(())
}
