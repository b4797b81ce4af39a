//! `record`.

use crate::args::{RecordArgs, RecordSource};
use crate::output::{say, CommandFailure, Ending};
use std::ops::Range;
use terrace_terrace::record::{
    self, CaptureMethod, PerfSettings, RecordError, RecordSpec, SampledRecordSpec,
};
use terrace_terrace::riscv::RiscvRecording;
use terrace_terrace::trace::capture::Filter;
use terrace_terrace::types::Bytes;

/// `FROM..TO`, decimal or hexadecimal, either of them left out.
pub fn range(flag: &str, text: Option<&String>) -> Result<Range<u64>, CommandFailure> {
    let Some(text) = text else { return Ok(0..u64::MAX) };
    let wrong = || {
        CommandFailure::usage(format!(
            "{flag} {text}: give FROM..TO with FROM below TO, such as 0x1000..0x2000"
        ))
    };
    let number = |part: &str, absent: u64| match part.trim() {
        "" => Some(absent),
        part => match part.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => part.parse().ok(),
        },
    };
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let range = number(from, 0).ok_or_else(wrong)?..number(to, u64::MAX).ok_or_else(wrong)?;
    if range.is_empty() {
        return Err(wrong());
    }
    Ok(range)
}

/// What the arguments say to keep.
pub fn filter(args: &RecordArgs) -> Result<Filter, CommandFailure> {
    let sizes = range("--sizes", args.sizes.as_ref())?;
    Ok(Filter {
        period: args.period,
        addresses: range("--addresses", args.addresses.as_ref())?,
        sizes: u32::try_from(sizes.start).unwrap_or(u32::MAX)
            ..u32::try_from(sizes.end).unwrap_or(u32::MAX),
        times: range("--instructions", args.instructions.as_ref())?,
        begins_later: args.begin_at.is_some(),
    })
}

/// `terrace record`: ends as the command did; 3 where recording is not possible here.
pub fn record(args: &RecordArgs) -> Ending {
    if args.callers && args.source != RecordSource::Perf {
        return Err(CommandFailure::usage("--callers needs --source perf"));
    }
    let source = match args.source {
        RecordSource::Riscv => return of_riscv(args),
        RecordSource::Perf => return sampled(args),
        RecordSource::Auto | RecordSource::Full => CaptureMethod::Emulator,
        RecordSource::Translated => CaptureMethod::Translator,
        RecordSource::Hooks => CaptureMethod::Hooks,
    };
    let spec = RecordSpec {
        source,
        objects: args.objects.map(Bytes),
        output: args.output.clone(),
        filter: filter(args)?,
        pcs: args.pc,
        values: args.values,
        begin_at: args.begin_at.clone(),
        end_at: args.end_at.clone(),
        environment: Vec::new(),
        program_output: None,
        directory: None,
    };
    let recorded = record::record(&spec, &args.command).map_err(failure)?;
    for note in &recorded.notes {
        say(note);
    }
    if !args.quiet {
        say(&recorded.line(&spec.output));
    }
    recorded.ended.leave()
}

/// `record --source riscv`.
fn of_riscv(args: &RecordArgs) -> Ending {
    for (given, flag, why) in [
        (args.values, "--values", "values are not kept"),
        (args.objects.is_some(), "--objects", "objects are named by hooks only"),
        (args.begin_at.is_some(), "--begin-at", "functions are not known by name"),
        (args.end_at.is_some(), "--end-at", "functions are not known by name"),
    ] {
        if given {
            let line = format!("{flag} with --source riscv: {why}; leave it out");
            return Err(CommandFailure::lacking(line));
        }
    }
    let recording =
        RiscvRecording { output: args.output.clone(), filter: filter(args)?, pcs: args.pc };
    crate::riscv::record(&args.command, &recording, args.quiet)
}

/// `record --source perf`.
fn sampled(args: &RecordArgs) -> Ending {
    let plain = args.period == 1
        && !args.values
        && [&args.addresses, &args.sizes, &args.instructions, &args.begin_at, &args.end_at]
            .iter()
            .all(|option| option.is_none())
        && args.objects.is_none();
    if !plain {
        let why = "--source perf takes --sampling and no filter, value or object";
        return Err(CommandFailure::usage(why));
    }
    let settings = PerfSettings::parse(args.sampling.as_deref().unwrap_or_default())
        .map_err(|why| CommandFailure::usage(format!("--sampling {why}")))?;
    let settings = PerfSettings { callers: args.callers, ..settings };
    let spec = SampledRecordSpec { output: args.output.clone(), settings };
    let recorded = record::record_samples(&spec, &args.command).map_err(failure)?;
    recorded.notes.iter().for_each(|note| say(note));
    if !args.quiet {
        say(&recorded.line(&spec.output));
    }
    recorded.ended.leave()
}

fn failure(error: RecordError) -> CommandFailure {
    match error {
        RecordError::Lacking(_) => CommandFailure::lacking(error),
        RecordError::Start(e) => CommandFailure { code: e.exit_code() as u8, line: e.to_string() },
        _ => CommandFailure::failed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_or_refused() {
        let read = |text: &str| range("--x", Some(&text.to_owned())).ok();
        assert_eq!(read("0x10..32"), Some(16..32));
        assert_eq!(read("..8"), Some(0..8));
        assert_eq!(read("5.."), Some(5..u64::MAX));
        assert_eq!(range("--x", None).ok(), Some(0..u64::MAX));
        for wrong in ["", "5", "9..5", "a..b", "5..5", "1..-2"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
