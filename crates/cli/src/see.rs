//! `tiers`, `doctor`, `gather`, `report`.

use crate::args::{renamed, DoctorArgs, GatherArgs, RankBy, ReportArgs, TiersArgs};
use crate::output::{print, print_json, print_json_with, say, width, CommandFailure, Ending};
use crate::replace::{same, write};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use terrace_terrace::machine::{self, TiersReport};
use terrace_terrace::source_lines::name_callers;
use terrace_terrace::topology::{self, DiskTree, MachineSource};
use terrace_terrace::types::{text, NodeId};
use terrace_terrace::{doctor as examination, latest, report as documents};

/// `terrace tiers`.
pub fn tiers(args: &TiersArgs) -> Ending {
    let (machine, old) = renamed(args.from.clone(), args.machine.clone(), ["--from", "--machine"]);
    old.iter().for_each(|note| say(note));
    let source = MachineSource::parse_machine(&machine);
    let found = topology::load_machine(&source).map_err(|e| match source {
        MachineSource::Live => CommandFailure::failed(e),
        _ => CommandFailure::usage(e),
    })?;
    let by = match args.by {
        RankBy::Bandwidth => machine::RankAttribute::Bandwidth,
        RankBy::Latency => machine::RankAttribute::Latency,
        RankBy::Capacity => machine::RankAttribute::Capacity,
    };
    let ranking =
        machine::rank(&found, by, args.initiator.map(NodeId)).map_err(CommandFailure::usage)?;
    // GPUs are of this machine; a file says nothing of them.
    let gpus = matches!(source, MachineSource::Live).then(examination::gpus_note);
    if args.json {
        let notes = found.notes.iter().chain(&ranking.notes).chain(&gpus).chain(&old);
        let report = TiersReport::new(&found, &ranking, &source.label());
        return print_json_with(&report, &notes.cloned().collect::<Vec<_>>());
    }
    let mut text = machine::render_text_within(&found, &ranking, &source.label(), width());
    if let Some(note) = gpus {
        text::wrap(&mut text, &note, "- ", "  ", width());
    }
    print(&text)
}

/// `terrace doctor`: status 0 where `run` would manage, 3 where it would not.
pub fn doctor(args: &DoctorArgs) -> Ending {
    let examined = examination::examine();
    if args.json {
        print_json(&examined)?;
    } else {
        print(&examined.text(width()))?;
    }
    Ok(if examined.manages { 0 } else { 3 })
}

/// `terrace gather`.
pub fn gather(args: &GatherArgs) -> Ending {
    // A tree is some megabytes at most: written once it is whole.
    let mut tree = Vec::new();
    let done = topology::gather(&DiskTree::live(), terrace_terrace::machine_page_size(), &mut tree)
        .map_err(CommandFailure::failed)?;
    write(&args.output, &tree)
        .map_err(|e| CommandFailure::failed(format!("gather {}: {e}", args.output.display())))?;
    if args.json {
        let skipped: Vec<String> = done.skipped.iter().map(ToString::to_string).collect();
        return print_json(
            &serde_json::json!({ "output": args.output, "files": done.files, "left_out": skipped }),
        );
    }
    for skipped in &done.skipped {
        say(&format!("left out: {skipped}"));
    }
    print(&format!("{}: {} files\n", args.output.display(), done.files))
}

/// `terrace report`.
pub fn report(args: &ReportArgs) -> Ending {
    let path = match &args.file {
        Some(path) => path.clone(),
        None => latest_here()?,
    };
    let name = path.display();
    let failed = |e: &dyn std::fmt::Display| CommandFailure::failed(format!("report {name}: {e}"));
    let out = args.output.clone().unwrap_or_else(|| path.with_extension("html"));
    if !args.json && same(&path, &out) {
        return Err(CommandFailure::usage(format!(
            "report {name}: the report would take its place; name another file with -o FILE"
        )));
    }
    let mut file = BufReader::new(File::open(&path).map_err(|e| failed(&e))?);
    // A recording may be larger than memory; the others are not.
    let document = if file.fill_buf().map_err(|e| failed(&e))?.starts_with(b"TERRTRC") {
        documents::read_recording(file)
    } else {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|e| failed(&e))?;
        documents::read(&bytes)
    };
    let mut document = document.map_err(|e| failed(&e))?;
    name_callers(&mut document);
    if args.json {
        return print_json(&document.to_json());
    }
    write(&out, document.to_html()).map_err(|e| {
        let other = if args.output.is_none() { "; name another with -o FILE" } else { "" };
        CommandFailure::failed(format!("report {}: {e}{other}", out.display()))
    })?;
    print(&document.to_text(width()))?;
    print(&format!("{}\n", out.display()))
}

/// The journal or recording in this folder that was written last; its name is said.
fn latest_here() -> Result<PathBuf, CommandFailure> {
    let found = latest::latest(Path::new("."))
        .map_err(|e| CommandFailure::failed(format!("report: this folder cannot be read: {e}")))?;
    let path = found.ok_or_else(|| {
        CommandFailure::usage(
            "report: no journal and no recording in this folder; name one, or make one with \
             terrace run --journal run.jsonl CMD",
        )
    })?;
    say(&format!("report: {}, written last in this folder", path.display()));
    Ok(path)
}
