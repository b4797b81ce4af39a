//! `trace info`, `trace cat` and `trace import`.

use crate::args::{renamed, ImportFormat, TraceCatArgs, TraceImportArgs, TraceInfoArgs};
use crate::output::{print, print_json, say, CommandFailure, Ending};
use crate::record::range;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;
use terrace_terrace::trace::{
    block_lines, import as importers, Block, BlockKind, Info, TraceError, TraceReader,
};

type Reader = TraceReader<BufReader<File>>;

fn open(path: &Path) -> Result<Reader, CommandFailure> {
    let failed = |why: &dyn std::fmt::Display| {
        CommandFailure::failed(format!("trace {}: {why}", path.display()))
    };
    let file = File::open(path).map_err(|e| failed(&e))?;
    TraceReader::open(BufReader::new(file)).map_err(|e| failed(&e))
}

/// `terrace trace info`.
pub fn info(args: &TraceInfoArgs) -> Ending {
    let failed =
        |e: TraceError| CommandFailure::failed(format!("trace {}: {e}", args.file.display()));
    let info = Info::from_reader(&mut open(&args.file)?).map_err(failed)?;
    for damage in &info.damage {
        say(&format!("{}: {damage}", args.file.display()));
    }
    if args.json {
        print_json(&info)
    } else {
        print(&info.text())
    }
}

/// `terrace trace cat`.
pub fn cat(args: &TraceCatArgs) -> Ending {
    let failed = |e: &dyn std::fmt::Display| {
        CommandFailure::failed(format!("trace {}: {e}", args.file.display()))
    };
    let times = range("--times", args.times.as_ref())?;
    let mut reader = open(&args.file)?;
    let every = args.thread.is_none() && args.times.is_none();
    let chosen: Vec<usize> = if every {
        (0..reader.blocks().len()).collect()
    } else {
        reader.select(args.thread, times.start, times.end).collect()
    };
    let mut block = Block::new().map_err(|e| failed(&e))?;
    let (lines, old) = renamed(args.limit.map(Some), args.lines, ["--limit", "--lines"]);
    old.iter().for_each(|note| say(note));
    let mut left = lines.unwrap_or(u64::MAX);
    for position in chosen {
        match reader.read(position, &mut block) {
            Ok(()) => {}
            Err(e @ TraceError::Damaged { .. }) => {
                say(&format!("{}: {e}", args.file.display()));
                continue;
            }
            Err(e) => return Err(failed(&e)),
        }
        if left == 0 {
            break;
        }
        if block.info().kind == BlockKind::End {
            continue;
        }
        let mut text = String::new();
        left -= block_lines(&block, left, &mut text);
        match std::io::stdout().write_all(text.as_bytes()) {
            Ok(()) => {}
            // Whoever was reading has seen enough.
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => return Ok(0),
            Err(e) => return Err(failed(&e)),
        }
    }
    for missing in reader.shortcomings() {
        say(&format!("{}: {missing}", args.file.display()));
    }
    Ok(0)
}

/// `terrace trace import`.
pub fn import(args: &TraceImportArgs) -> Ending {
    let failed = |e: &dyn std::fmt::Display| {
        CommandFailure::failed(format!("import {}: {e}", args.file.display()))
    };
    let from_pipe = args.file.as_os_str() == "-";
    let output = match &args.output {
        Some(output) => output.clone(),
        None if from_pipe => {
            return Err(CommandFailure::usage("import -: say with -o where to write"))
        }
        None => args.file.with_extension("trace"),
    };
    let open = || File::open(&args.file).map_err(|e| failed(&e));
    let is_perf_data = !from_pipe && begins_as_perf_data(open()?);
    let format = match args.from {
        Some(ImportFormat::Lackey) => Some(importers::RecordingFormat::Lackey),
        Some(ImportFormat::Perf) if !is_perf_data => Some(importers::RecordingFormat::Perf),
        Some(ImportFormat::Damo) => Some(importers::RecordingFormat::Damo),
        Some(ImportFormat::Perf) => None,
        None if is_perf_data => None,
        None => {
            let what = "say with --from whose recording it is; perf.data files are recognized";
            return Err(CommandFailure::usage(format!("import {}: {what}", args.file.display())));
        }
    };
    let file = File::create(&output)
        .map_err(|e| CommandFailure::failed(format!("import: {}: {e}", output.display())))?;
    let file = BufWriter::new(file);
    let read = match format {
        None => importers::import_perf_data(BufReader::new(open()?), file),
        Some(format) if from_pipe => {
            importers::import(format, BufReader::new(std::io::stdin()), file)
        }
        Some(format) => importers::import(format, BufReader::new(open()?), file),
    };
    let read = read.map_err(|e| {
        // What there is of it is no recording; a device or pipe is nobody's to remove.
        if output.is_file() {
            let _left = std::fs::remove_file(&output);
        }
        failed(&e)
    })?;
    if format.is_none() {
        return imported_perf_data(args, &output, &read);
    }
    if let Some(line) = read.first_skipped_line {
        say(&format!(
            "import {}: {} of {} lines are not understood, the first is line {line}",
            args.file.display(),
            read.skipped,
            read.lines
        ));
    }
    if args.json {
        return print_json(&read);
    }
    let samples = match (read.sampled, read.period) {
        (false, _) => String::new(),
        (true, 0 | 1) => ", samples".to_owned(),
        (true, period) => format!(", samples of about {period} events each"),
    };
    print(&format!(
        "{}: {} accesses from {} lines, {} not understood{samples}\n",
        output.display(),
        read.accesses,
        read.lines,
        read.skipped
    ))
}

/// Whether a file is one that `perf record` wrote.
fn begins_as_perf_data(mut file: File) -> bool {
    let mut magic = [0; 8];
    file.read_exact(&mut magic).is_ok() && [*b"PERFILE2", *b"2ELIFREP"].contains(&magic)
}

fn imported_perf_data(args: &TraceImportArgs, output: &Path, read: &importers::Imported) -> Ending {
    if read.skipped > 0 {
        let (file, skipped) = (args.file.display(), read.skipped);
        say(&format!("import {file}: {skipped} records are damaged and left out"));
    }
    if read.cut_off {
        say(&format!(
            "import {}: it ends before its records do: it was cut off",
            args.file.display()
        ));
    }
    if args.json {
        return print_json(read);
    }
    let period = match read.period {
        0 | 1 => String::new(),
        period => format!(" of about {period} events each"),
    };
    print(&format!(
        "{}: {} samples{period}; {} lost, {} throttled, {} unthrottled\n",
        output.display(),
        read.accesses,
        read.lost,
        read.throttled,
        read.unthrottled
    ))
}
