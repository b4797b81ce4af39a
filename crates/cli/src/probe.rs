//! `probe` and `degrade`.

use crate::args::{DegradeArgs, ProbeArgs};
use crate::output::{print, print_json, say, CommandFailure, Ending, ExpectedWork, ProgressLines};
use crate::replace::{begin, replace, unbegin, Begun};
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_terrace::degrade::{self as slower, DegradeError, NotRun};
use terrace_terrace::machine::{parse_list, parse_rate};
use terrace_terrace::probe::{self as measure, Depth, ProbeError};
use terrace_terrace::types::{CpuId, NodeId};
use terrace_terrace::{report, Interrupt};

/// Interrupted, as a shell has it.
const INTERRUPTED: u8 = 130;

/// What files hold until they are written, should it never come to that.
const MACHINE_BEGUN: &str =
    "# PARTIAL: terrace probe has not come to its end; what it measures is written here when it \
        does.\n";
const REPORT_BEGUN: &str =
    "<!doctype html><title>PARTIAL</title><p>PARTIAL: terrace probe has not come to its end.\n";

/// `terrace probe`: what was measured is written even when it is interrupted, and says so.
pub fn probe(args: &ProbeArgs) -> Ending {
    let depth = match (args.brief, args.quick) {
        (true, _) => Depth::Brief,
        (false, true) => Depth::Quick,
        (false, false) => Depth::Full,
    };
    if let Some(folder) = &args.disk {
        return disk(folder, depth, args);
    }
    if args.output.is_some() && args.output == args.report {
        return Err(CommandFailure::usage("-o and --report name the same file; give two"));
    }
    // Found out now, not after a minute.
    let files = [(&args.output, MACHINE_BEGUN), (&args.report, REPORT_BEGUN)];
    let mut begun = Vec::new();
    let none_left = |begun: &[(&PathBuf, &str, Begun)]| {
        for (path, text, how) in begun {
            // The error that is reported is why there is nothing to write; a file that cannot be
            // removed says that it is not finished.
            let _left = unbegin(path, text, *how);
        }
    };
    for (path, text) in files.into_iter().filter_map(|(path, text)| Some((path.as_ref()?, text))) {
        match begin(path, text) {
            Ok(how) => begun.push((path, text, how)),
            Err(e) => {
                none_left(&begun);
                return Err(cannot_write(path, &e));
            }
        }
    }
    let interrupt = Interrupt::catch();
    let probed = {
        let progress = ProgressLines::new(ExpectedWork::Estimated);
        let mut reported = |p: &measure::ProbeProgress| {
            let what = format!("{} of {}, {}", p.done + 1, p.all, p.what);
            progress.left(&what, p.left.map(|l| Duration::from_nanos(l.get())));
        };
        measure::probe(depth, interrupt.flag(), &mut reported)
    }
    .map_err(|e| {
        none_left(&begun);
        match e {
            ProbeError::Nothing(_) => CommandFailure::lacking(e),
            _ => CommandFailure::failed(e),
        }
    })?;
    drop(interrupt);
    if let Some(path) = &args.output {
        replace(path, probed.machine_file()).map_err(|e| cannot_write(path, &e))?;
    }
    let json = probed.json().map_err(CommandFailure::failed)?;
    if let Some(path) = &args.report {
        let document = report::read(json.to_string().as_bytes()).map_err(CommandFailure::failed)?;
        replace(path, document.to_html()).map_err(|e| cannot_write(path, &e))?;
    }
    if args.json {
        print_json(&json)?;
    } else {
        print(&probed.text().map_err(CommandFailure::failed)?)?;
    }
    if let Some(why) = &probed.measured.partial {
        say(&format!("probe: {why}; what is written is partial and says so"));
        return Ok(INTERRUPTED);
    }
    Ok(0)
}

/// `terrace probe --disk`.
fn disk(folder: &Path, depth: Depth, args: &ProbeArgs) -> Ending {
    // What stands in the way of writing is found out now, not after ten seconds.
    let file = match &args.output {
        Some(path) => {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path).map_err(|e| {
                CommandFailure::failed(format!(
                    "cannot read {name}: {e}; terrace probe -o {name} makes the machine file first"
                ))
            })?;
            measure::check_machine_file(&text, &name, &args.store)
                .map_err(CommandFailure::failed)?;
            std::fs::OpenOptions::new()
                .append(true)
                .open(path)
                .map_err(|e| cannot_write(path, &e))?;
            Some((path, name, text))
        }
        None => None,
    };
    let interrupt = Interrupt::catch();
    let probed = {
        let progress = ProgressLines::new(ExpectedWork::Estimated);
        let mut reported = |p: &measure::ProbeProgress| {
            progress.left(&format!("{} of {}, {}", p.done + 1, p.all, p.what), None)
        };
        measure::probe_disk(folder, depth, interrupt.flag(), &mut reported)
            .map_err(CommandFailure::failed)?
    };
    if args.json {
        print_json(&probed.json())?;
    } else {
        print(&probed.text())?;
    }
    if let Some(why) = &probed.disk.partial {
        let unchanged = if file.is_some() { ", the machine file is as it was" } else { "" };
        say(&format!("probe: {why}; what is printed is partial{unchanged}"));
        return Ok(INTERRUPTED);
    }
    if let Some((path, name, text)) = file {
        let text =
            probed.machine_file(&text, &name, &args.store).map_err(CommandFailure::failed)?;
        replace(path, &text).map_err(|e| cannot_write(path, &e))?;
        say(&format!(
            "probe: far store {} is in {name}; terrace sim --policy far:{} uses it",
            args.store, args.store
        ));
    }
    Ok(0)
}

fn cannot_write(path: &Path, error: &std::io::Error) -> CommandFailure {
    CommandFailure::failed(format!("cannot write {}: {error}; give another file", path.display()))
}

/// `terrace degrade`: ends as the command did; 1 to 3, 126 and 127 where it did not start.
pub fn degrade(args: &DegradeArgs) -> Ending {
    let wrong =
        || CommandFailure::usage(format!("--to {}: give bytes a second, such as 20GB/s", args.to));
    let per_second =
        if args.to.contains("/s") { args.to.clone() } else { format!("{}B/s", args.to) };
    let to = parse_rate(&per_second).filter(|r| r.get() > 0).ok_or_else(wrong)?;
    let cpus = |list: &String| {
        parse_list(list, 8191)
            .map_err(|e| CommandFailure::usage(format!("--load-cpus {list}: {e}")))
    };
    let load = args.load_cpus.as_ref().map(cpus).transpose()?;
    let load: Option<Vec<CpuId>> = load.map(|list| list.into_iter().map(CpuId).collect());
    let mut reported = |account: &slower::DegradeAccount| {
        if !args.quiet {
            account.lines().iter().for_each(|line| say(line));
        }
    };
    let ended =
        slower::degrade(NodeId(args.node), to, load.as_deref(), &args.command, &mut reported);
    let (ended, account) = ended.map_err(|e| match e {
        NotRun::Start(e) => CommandFailure { code: e.exit_code() as u8, line: e.to_string() },
        NotRun::Degrade(e @ (DegradeError::Trouble(_) | DegradeError::Unsteady { .. })) => {
            CommandFailure::failed(e)
        }
        NotRun::Degrade(e @ DegradeError::AboveFree { .. }) => CommandFailure::usage(e),
        NotRun::Degrade(e) => CommandFailure::lacking(e),
        NotRun::Topology(e) => CommandFailure::failed(e),
    })?;
    if let Some(path) = &args.summary {
        let text = serde_json::to_string_pretty(&account).map_err(|e| e.to_string());
        // Nothing of ours may change how the command ends.
        if let Err(e) = text.and_then(|t| std::fs::write(path, t + "\n").map_err(|e| e.to_string()))
        {
            say(&format!("summary {}: {e}", path.display()));
        }
    }
    if !args.quiet {
        say(&account.last_line());
    }
    ended.leave()
}
