//! Events as bytes.

use crate::event::{CacheOperation, CallFrame, EventKind, TraceEvent};
use crate::pack::{put_number, unzigzag, zigzag, Taker};

/// Longest name that is kept, bytes.
pub const MAX_NAME: usize = 4096;

const MAP: u8 = 1;
const UNMAP: u8 = 2;
const REMAP: u8 = 3;
const BREAK: u8 = 4;
const THREAD_START: u8 = 5;
const THREAD_EXIT: u8 = 6;
const FORK: u8 = 7;
const EXEC: u8 = 8;
const OBJECT: u8 = 9;
const MARK: u8 = 10;
const LOST: u8 = 11;
const SAMPLE_INTERRUPT: u8 = 12;
const CPU_NODE: u8 = 13;
const CACHE: u8 = 14;
const CALL_PATH: u8 = 15;
/// Frames of a call path that are kept; the kernel's chains have 127 (`perf_event_max_stack`).
pub const MAX_FRAMES: usize = 128;

/// Appends an event: length, then what it is, so that readers can step over kinds they do not know.
pub fn put(out: &mut Vec<u8>, event: &TraceEvent, scratch: &mut Vec<u8>) {
    scratch.clear();
    put_number(scratch, event.time);
    put_number(scratch, u64::from(event.process));
    put_number(scratch, u64::from(event.thread));
    let mut part = |tag: u8, numbers: &[u64], name: Option<&str>| {
        scratch.push(tag);
        numbers.iter().for_each(|n| put_number(scratch, *n));
        if let Some(name) = name {
            put_name(scratch, name);
        }
    };
    match &event.what {
        EventKind::Map { start, length, protection, flags, name } => {
            part(MAP, &[*start, *length, u64::from(*protection), u64::from(*flags)], Some(name));
        }
        EventKind::Unmap { start, length } => part(UNMAP, &[*start, *length], None),
        EventKind::Remap { from, old_length, to, length } => {
            part(REMAP, &[*from, *old_length, *to, *length], None)
        }
        EventKind::Break { end } => part(BREAK, &[*end], None),
        EventKind::ThreadStart { pid, tid } => {
            part(THREAD_START, &[zigzag(i64::from(*pid)), zigzag(i64::from(*tid))], None);
        }
        EventKind::ThreadExit => part(THREAD_EXIT, &[], None),
        EventKind::Fork { parent } => part(FORK, &[u64::from(*parent)], None),
        EventKind::Exec { name } => part(EXEC, &[], Some(name)),
        EventKind::Object { start, length, name } => part(OBJECT, &[*start, *length], Some(name)),
        EventKind::Mark { id } => part(MARK, &[u64::from(*id)], None),
        EventKind::Lost { accesses } => part(LOST, &[*accesses], None),
        EventKind::Cache { operation, address, pc } => {
            part(CACHE, &[operation.code(), *address, *pc], None);
        }
        EventKind::SampleInterrupt { samples } => {
            part(SAMPLE_INTERRUPT, &[u64::from(*samples)], None);
        }
        EventKind::CallPath { samples, frames } => {
            let frames = &frames[..frames.len().min(MAX_FRAMES)];
            part(CALL_PATH, &[*samples, frames.len() as u64], None);
            for frame in frames {
                put_number(scratch, frame.offset);
                put_name(scratch, &frame.file);
            }
        }
        EventKind::CpuNode { cpu, node } => {
            part(CPU_NODE, &[u64::from(*cpu), u64::from(*node)], None);
        }
    }
    put_number(out, scratch.len() as u64);
    out.extend_from_slice(scratch);
}

/// Takes the next event; `Some(None)` for a kind that is not known here.
pub fn take(rest: &mut Taker<'_>) -> Option<Option<TraceEvent>> {
    let length = usize::try_from(rest.number()?).ok()?;
    let mut t = Taker(rest.bytes(length)?);
    let (time, process, thread) = (t.number()?, t.small()?, t.small()?);
    let tag = t.bytes(1)?[0];
    let what = match tag {
        MAP => EventKind::Map {
            start: t.number()?,
            length: t.number()?,
            protection: t.small()?,
            flags: t.small()?,
            name: name(&mut t)?,
        },
        UNMAP => EventKind::Unmap { start: t.number()?, length: t.number()? },
        REMAP => EventKind::Remap {
            from: t.number()?,
            old_length: t.number()?,
            to: t.number()?,
            length: t.number()?,
        },
        BREAK => EventKind::Break { end: t.number()? },
        THREAD_START => EventKind::ThreadStart { pid: signed(&mut t)?, tid: signed(&mut t)? },
        THREAD_EXIT => EventKind::ThreadExit,
        FORK => EventKind::Fork { parent: t.small()? },
        EXEC => EventKind::Exec { name: name(&mut t)? },
        OBJECT => {
            EventKind::Object { start: t.number()?, length: t.number()?, name: name(&mut t)? }
        }
        MARK => EventKind::Mark { id: t.small()? },
        LOST => EventKind::Lost { accesses: t.number()? },
        CACHE => match CacheOperation::from_code(t.number()?) {
            Some(operation) => {
                EventKind::Cache { operation, address: t.number()?, pc: t.number()? }
            }
            None => return Some(None),
        },
        SAMPLE_INTERRUPT => EventKind::SampleInterrupt { samples: t.small()? },
        CALL_PATH => EventKind::CallPath { samples: t.number()?, frames: frames(&mut t)? },
        CPU_NODE => EventKind::CpuNode { cpu: t.small()?, node: t.small()? },
        _ => return Some(None),
    };
    // Bytes left over are fields that a later version added.
    Some(Some(TraceEvent { time, process, thread, what }))
}

fn put_name(out: &mut Vec<u8>, name: &str) {
    let mut end = name.len().min(MAX_NAME);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    put_number(out, end as u64);
    out.extend_from_slice(&name.as_bytes()[..end]);
}

fn frames(t: &mut Taker<'_>) -> Option<Vec<CallFrame>> {
    let count = usize::try_from(t.number()?).ok().filter(|n| *n <= MAX_FRAMES)?;
    (0..count).map(|_| Some(CallFrame { offset: t.number()?, file: name(t)? })).collect()
}

fn signed(t: &mut Taker<'_>) -> Option<i32> {
    i32::try_from(unzigzag(t.number()?)).ok()
}

fn name(t: &mut Taker<'_>) -> Option<String> {
    let length = usize::try_from(t.number()?).ok().filter(|n| *n <= MAX_NAME)?;
    Some(String::from_utf8_lossy(t.bytes(length)?).into_owned())
}
