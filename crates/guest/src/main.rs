//! `terrace-guest`: init of the lab's guest when it is process 1, else one of its calibration
//! programs.

use std::path::Path;
use std::time::Duration;
use terrace_guest::calibrate::{self, LineSweep};
use terrace_guest::mailbox::Mailbox;
use terrace_guest::wire::MailboxState;
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
    match mailbox.take_job().and_then(|archive| job::run(archive, mailbox.space())) {
        Ok(reply) => {
            if !mailbox.put(MailboxState::Done, &reply) {
                mailbox.refuse("the reply does not fit the mailbox".into());
            }
        }
        Err(e) => mailbox.refuse(e.to_string()),
    }
    Ok(())
}

/// Run the measurements asked for, each `KIND:NODE:MIB:COUNT:CPU[,CPU...]`, and print one figure a
/// line.
fn program(args: &[String]) -> Result<(), String> {
    const USAGE: &str =
        "usage: terrace-guest KIND:NODE:MIB:COUNT:CPU[,CPU...]...  with KIND chase (ns), read or \
            triad (bytes/s)";
    if args.is_empty() {
        return Err(USAGE.into());
    }
    for arg in args {
        let words: Vec<&str> = arg.split(':').collect();
        let [kind, node, mib, count, cpus] = words[..] else { return Err(USAGE.into()) };
        let number = |text: &str| text.parse::<u32>().map_err(|_| USAGE.to_string());
        let (node, bytes, count) = (number(node)?, (number(mib)? as usize) << 20, number(count)?);
        let cpus = cpus
            .split(',')
            .map(|c| number(c).map(|c| c as usize))
            .collect::<Result<Vec<_>, _>>()?;
        let figure = match kind {
            "chase" => calibrate::chase(node, bytes, count.into(), cpus[0]),
            "read" => calibrate::sweep(LineSweep::Read, node, bytes, count, &cpus),
            "triad" => calibrate::sweep(LineSweep::Triad, node, bytes, count, &cpus),
            _ => return Err(USAGE.into()),
        };
        println!("{:.3}", figure.map_err(|e| format!("{arg}: {e}"))?);
    }
    Ok(())
}
