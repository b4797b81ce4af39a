//! `NAME[,key=value...]`: which workload, how large, how long. A pure parser.

mod name;

pub use name::WorkloadName;

use std::fmt;
use std::str::FromStr;
use terrace_types::{Bytes, Nanos};

use crate::arena::DataPageSize;

/// Where hot pages lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HotLayout {
    /// In one run, after the cold ones.
    #[default]
    Contiguous,
    /// One by one among the cold ones, all over the address range.
    Scattered,
}

/// What is done to hot data; cold data is always read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HotAccess {
    /// A word is incremented: a load and a store.
    #[default]
    Write,
    /// A word is loaded.
    Read,
}

/// An amount of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataSize {
    /// Millionths of what is free in the fast tier.
    Share(u32),
    /// Bytes.
    Exact(Bytes),
}

impl DataSize {
    /// In bytes, for a fast tier with `fast` free.
    #[must_use]
    pub const fn bytes(self, fast: Bytes) -> Bytes {
        match self {
            Self::Share(ppm) => Bytes((fast.0 as u128 * ppm as u128 / 1_000_000) as u64),
            Self::Exact(bytes) => bytes,
        }
    }
}

/// A workload with all its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadSpec {
    /// Which.
    pub name: WorkloadName,
    /// Threads of the measured phase.
    pub threads: u32,
    /// Seed of all its random choices.
    pub seed: u64,
    /// Free memory of the fast tier, which sizes are shares of.
    pub fast: Bytes,
    /// Size of the data (of the cold data where hot and cold are distinguished).
    pub size: DataSize,
    /// Size of the hot set.
    pub hot_size: DataSize,
    /// Millionths of all accesses that go to the hot set.
    pub hot_share: u32,
    /// Where hot pages lie.
    pub layout: HotLayout,
    /// What is done to hot data.
    pub hot: HotAccess,
    /// Pages asked of the kernel.
    pub pages: DataPageSize,
    /// Accesses of the measured phase, all threads together.
    pub accesses: u64,
    /// Stop after this time instead; the checksum then covers what is independent of speed.
    pub seconds: Option<Nanos>,
    /// Of the NAS Parallel Benchmarks: class S, whose size and length are given; `size` and
    /// `accesses` do not count.
    pub class_s: bool,
    /// How long `shift` leaves its hot set in place.
    pub phase: Nanos,
}

/// Why a specification is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadSpecError {
    /// No such workload.
    #[error("no workload is called '{0}'; there are {list}", list = names())]
    UnknownName(String),
    /// No such parameter.
    #[error("'{0}' is no parameter of a workload; there are {list}", list = keys())]
    UnknownKey(String),
    /// A parameter without a value.
    #[error("'{0}' has no value; write key=value, such as accesses=32M")]
    NoValue(String),
    /// A value that cannot be read.
    #[error("{key}={value} cannot be read; {expected}")]
    BadValue {
        /// The parameter.
        key: &'static str,
        /// What was given.
        value: String,
        /// What would be understood.
        expected: &'static str,
    },
}

/// A parameter of workloads, as [`WorkloadSpec::parse`] reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkloadParameter {
    /// Its key.
    pub key: &'static str,
    /// What may be given.
    pub values: &'static str,
    /// What it sets, and what holds where it is not given.
    pub summary: &'static str,
}

const fn parameter(
    key: &'static str,
    values: &'static str,
    summary: &'static str,
) -> WorkloadParameter {
    WorkloadParameter { key, values, summary }
}

impl WorkloadParameter {
    /// All of them.
    pub const ALL: [Self; 13] = [
        parameter("threads", "1 to 256", "threads of the measured phase (2)"),
        parameter("seed", "a whole number", "seed of all random choices (1)"),
        parameter(
            "fast",
            "bytes: 134MiB",
            "free memory of the fast tier, which sizes are shares of",
        ),
        parameter("size", "33%, 1/3, 64MiB", "size of the data, by workload unless given"),
        parameter("hot_size", "33%, 1/3, 64MiB", "size of the hot set"),
        parameter("hot_share", "0% to 100%", "share of accesses that go to the hot set (80%)"),
        parameter("layout", "contiguous, scattered", "where hot pages lie (contiguous)"),
        parameter("hot", "write, read", "what is done to hot data (write)"),
        parameter("pages", "4k, thp", "pages asked of the kernel (4k)"),
        parameter("accesses", "a number: 32M", "accesses of the measured phase (128M)"),
        parameter("seconds", "a number: 0.5", "end after this time instead"),
        parameter("phase_seconds", "a number: 2", "how long shift leaves its hot set in place (2)"),
        parameter("class", "S", "NAS Parallel Benchmarks: their class S, whose size is given"),
    ];
}

fn keys() -> String {
    WorkloadParameter::ALL.map(|p| p.key).join(", ")
}

fn names() -> String {
    WorkloadName::ALL.map(WorkloadName::as_str).join(", ")
}

impl WorkloadSpec {
    /// The workload with its default parameters, for a fast tier with 134 MiB free (what a guest
    /// of the lab has left of its 192 MiB node).
    #[must_use]
    pub const fn new(name: WorkloadName) -> Self {
        let (size, hot_size) = name.default_sizes();
        Self {
            name,
            threads: 2,
            seed: 1,
            fast: Bytes::mib(134),
            size: DataSize::Share(size),
            hot_size: DataSize::Share(hot_size),
            hot_share: if matches!(name, WorkloadName::Rwsplit) { 500_000 } else { 800_000 },
            layout: HotLayout::Contiguous,
            hot: HotAccess::Write,
            pages: DataPageSize::Base,
            accesses: if matches!(name, WorkloadName::Stream) { 512_000_000 } else { 128_000_000 },
            seconds: None,
            class_s: false,
            phase: Nanos::secs(2),
        }
    }

    /// Reads `NAME[,key=value...]`.
    ///
    /// # Errors
    /// [`WorkloadSpecError`] says what is not understood and what would be.
    pub fn parse(text: &str) -> Result<Self, WorkloadSpecError> {
        let mut parts = text.split(',').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let name = WorkloadName::ALL
            .into_iter()
            .find(|n| n.as_str() == name)
            .ok_or_else(|| WorkloadSpecError::UnknownName(name.to_owned()))?;
        let mut spec = Self::new(name);
        for part in parts.filter(|p| !p.is_empty()) {
            let (key, value) =
                part.split_once('=').ok_or_else(|| WorkloadSpecError::NoValue(part.to_owned()))?;
            spec.set(key.trim(), value.trim())?;
        }
        Ok(spec)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), WorkloadSpecError> {
        match key {
            "threads" => {
                self.threads = number(value)
                    .and_then(|n| u32::try_from(n).ok())
                    .filter(|n| (1..=256).contains(n))
                    .ok_or_else(|| bad("threads", value, "give 1 to 256"))?;
            }
            "seed" => {
                self.seed = value.parse().map_err(|_| bad("seed", value, "give a whole number"))?;
            }
            "fast" | "fast_bytes" => {
                self.fast = bytes(value).filter(|b| b.0 >= 1 << 16).ok_or_else(|| {
                    bad("fast", value, "give bytes from 64KiB up, such as 134MiB")
                })?;
            }
            "size" => self.size = size(value).ok_or_else(|| bad("size", value, SIZE))?,
            "hot_size" => {
                self.hot_size = size(value).ok_or_else(|| bad("hot_size", value, SIZE))?
            }
            "hot_share" => {
                self.hot_share = share(value)
                    .filter(|ppm| *ppm <= 1_000_000)
                    .ok_or_else(|| bad("hot_share", value, "give 0% to 100%, or 0 to 1"))?;
            }
            "layout" => {
                self.layout = match value {
                    "contiguous" => HotLayout::Contiguous,
                    "scattered" => HotLayout::Scattered,
                    _ => return Err(bad("layout", value, "give contiguous or scattered")),
                };
            }
            "hot" => {
                self.hot = match value {
                    "write" => HotAccess::Write,
                    "read" => HotAccess::Read,
                    _ => return Err(bad("hot", value, "give write or read")),
                };
            }
            "pages" => {
                self.pages = match value {
                    "4k" => DataPageSize::Base,
                    "thp" => DataPageSize::Huge,
                    _ => return Err(bad("pages", value, "give 4k or thp")),
                };
            }
            "accesses" => {
                self.accesses = number(value)
                    .filter(|n| (1..=1 << 48).contains(n))
                    .ok_or_else(|| bad("accesses", value, "give a number such as 32M"))?;
            }
            "seconds" => self.seconds = Some(seconds("seconds", value)?),
            "class" => {
                self.class_s = match value {
                    "S" => true,
                    _ => return Err(bad("class", value, "give S; other sizes by size=")),
                };
            }
            "phase_seconds" => self.phase = seconds("phase_seconds", value)?,
            _ => return Err(WorkloadSpecError::UnknownKey(key.to_owned())),
        }
        Ok(())
    }
}

impl FromStr for WorkloadSpec {
    type Err = WorkloadSpecError;
    fn from_str(text: &str) -> Result<Self, WorkloadSpecError> {
        Self::parse(text)
    }
}

impl fmt::Display for WorkloadSpec {
    /// A specification that parses to the same; what is default for the name is left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = Self::new(self.name);
        write!(f, "{}", self.name)?;
        let mut field = |key: &str, differs: bool, value: String| {
            if differs {
                write!(f, ",{key}={value}")
            } else {
                Ok(())
            }
        };
        field("threads", self.threads != plain.threads, self.threads.to_string())?;
        field("seed", self.seed != plain.seed, self.seed.to_string())?;
        field("fast", self.fast != plain.fast, self.fast.0.to_string())?;
        field("size", self.size != plain.size, show(self.size))?;
        field("hot_size", self.hot_size != plain.hot_size, show(self.hot_size))?;
        field("hot_share", self.hot_share != plain.hot_share, ppm(self.hot_share))?;
        field("layout", self.layout != plain.layout, "scattered".to_owned())?;
        field("hot", self.hot != plain.hot, "read".to_owned())?;
        field("pages", self.pages != plain.pages, "thp".to_owned())?;
        field("accesses", self.accesses != plain.accesses, self.accesses.to_string())?;
        field("class", self.class_s, "S".to_owned())?;
        if let Some(time) = self.seconds {
            field("seconds", true, decimal(time.0, 9))?;
        }
        field("phase_seconds", self.phase != plain.phase, decimal(self.phase.0, 9))
    }
}

fn show(size: DataSize) -> String {
    match size {
        DataSize::Share(share) => ppm(share),
        DataSize::Exact(bytes) => format!("{}B", bytes.0),
    }
}

fn ppm(share: u32) -> String {
    format!("{}%", decimal(u64::from(share), 4))
}

fn decimal(value: u64, digits: usize) -> String {
    let unit = 10u64.pow(digits as u32);
    let text = format!("{}.{:0digits$}", value / unit, value % unit);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

const SIZE: &str = "give a share of the fast tier such as 33%, 0.33 or 1/3, or bytes such as 64MiB";

fn bad(key: &'static str, value: &str, expected: &'static str) -> WorkloadSpecError {
    WorkloadSpecError::BadValue { key, value: value.to_owned(), expected }
}

/// `123`, `32M` (millions), `1.5k`.
fn number(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1_000),
        b'M' => (&text[..text.len() - 1], 1_000_000),
        b'G' => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    scaled(digits, unit)
}

/// `64MiB`, `4k`, `1GiB`, `4096`, `4096B`.
fn bytes(text: &str) -> Option<Bytes> {
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let unit = match unit {
        "" | "B" => 1,
        "k" | "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1 << 40,
        _ => return None,
    };
    scaled(digits, unit).filter(|n| *n <= 1 << 46).map(Bytes)
}

/// `33%`, `0.33` or `1/3`, in millionths.
fn share(text: &str) -> Option<u32> {
    let ppm = if let Some(percent) = text.strip_suffix('%') {
        scaled(percent, 10_000)?
    } else if let Some((top, bottom)) = text.split_once('/') {
        let (top, bottom) = (number(top)?, number(bottom)?);
        top.checked_mul(1_000_000)?.checked_div(bottom)?
    } else {
        scaled(text, 1_000_000)?
    };
    u32::try_from(ppm).ok().filter(|ppm| *ppm <= 1_000_000_000)
}

fn size(text: &str) -> Option<DataSize> {
    if text.ends_with(|c: char| c.is_ascii_alphabetic()) {
        return bytes(text).map(DataSize::Exact);
    }
    share(text).map(DataSize::Share)
}

fn seconds(key: &'static str, text: &str) -> Result<Nanos, WorkloadSpecError> {
    scaled(text.strip_suffix('s').unwrap_or(text), 1_000_000_000)
        .filter(|n| *n > 0)
        .map(Nanos)
        .ok_or_else(|| bad(key, text, "give seconds above zero, such as 0.5"))
}

/// A decimal number times `unit`, exactly, rounded down.
fn scaled(text: &str, unit: u64) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |t: &str| t.len() <= 18 && t.bytes().all(|b| b.is_ascii_digit());
    if (whole.is_empty() && part.is_empty()) || !digits(whole) || !digits(part) {
        return None;
    }
    let read = |t: &str| {
        if t.is_empty() {
            Some(0)
        } else {
            t.parse::<u128>().ok()
        }
    };
    let unit = u128::from(unit);
    let value = read(whole)? * unit + read(part)? * unit / 10u128.pow(part.len() as u32);
    u64::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_listed_parameter_is_read() {
        for parameter in WorkloadParameter::ALL {
            let read = WorkloadSpec::parse(&format!("skew,{}=no such value", parameter.key));
            assert!(
                matches!(read, Err(WorkloadSpecError::BadValue { .. })),
                "{}: {read:?}",
                parameter.key
            );
        }
        assert!(WorkloadSpec::parse("skew,nosuch=1")
            .is_err_and(|e| e.to_string().contains("hot_share")));
    }
    use proptest::prelude::*;

    #[test]
    fn the_defaults_are_the_contracts() {
        let spec = WorkloadSpec::parse("skew").expect("a name alone is enough");
        assert_eq!((spec.threads, spec.accesses), (2, 128_000_000));
        assert_eq!(spec.size.bytes(spec.fast), spec.fast);
        assert_eq!(spec.hot_size.bytes(Bytes(3_000_000)).0, 999_999);
        assert_eq!(
            (spec.hot_share, spec.layout, spec.hot),
            (800_000, HotLayout::Contiguous, HotAccess::Write)
        );
        assert_eq!(spec.pages, DataPageSize::Base);
    }

    #[test]
    fn all_keys_are_read() {
        let spec = WorkloadSpec::parse(
            "skew,threads=3,seed=9,fast=134MiB,size=1.5,hot_size=1/3,hot_share=75%,\
             layout=scattered,hot=read,pages=thp,accesses=32M,seconds=0.5,phase_seconds=2.5s",
        )
        .expect("all keys are valid");
        assert_eq!((spec.threads, spec.seed, spec.fast), (3, 9, Bytes::mib(134)));
        assert_eq!(spec.size, DataSize::Share(1_500_000));
        assert_eq!(spec.hot_size, DataSize::Share(333_333));
        assert_eq!((spec.hot_share, spec.accesses), (750_000, 32_000_000));
        assert_eq!(
            (spec.layout, spec.hot, spec.pages),
            (HotLayout::Scattered, HotAccess::Read, DataPageSize::Huge)
        );
        assert_eq!((spec.seconds, spec.phase), (Some(Nanos::millis(500)), Nanos::millis(2_500)));
    }

    #[test]
    fn errors_name_what_would_be_understood() {
        let message = |text: &str| WorkloadSpec::parse(text).expect_err(text).to_string();
        assert!(message("skwe").contains("skew, shift, fits"));
        assert!(message("skew,acesses=1").contains("threads, seed, fast"));
        assert!(message("skew,accesses").contains("key=value"));
        assert!(message("skew,hot=both").contains("write or read"));
        assert!(message("skew,size=12XB").contains("64MiB"));
        for text in [
            "skew,threads=0",
            "skew,accesses=0",
            "skew,accesses=-1",
            "skew,fast=1k",
            "skew,hot_share=101%",
            "skew,size=1/0",
            "skew,seconds=0",
            "skew,size=",
            "",
            "skew,accesses=99999999999999999999",
            "skew,size=0.1.2",
        ] {
            assert!(WorkloadSpec::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn printing_and_parsing_give_the_same(
            name in 0usize..13, threads in 1u32..=256, seed: u64, fast in 65_536u64..1 << 40,
            size in 0u32..2_000_000, exact in 0u64..1 << 40, hot_share in 0u32..=1_000_000,
            flags in 0u8..16, accesses in 1u64..1 << 48, time in 1u64..1 << 50,
        ) {
            let spec = WorkloadSpec {
                threads, seed, fast: Bytes(fast), size: DataSize::Share(size),
                hot_size: DataSize::Exact(Bytes(exact)), hot_share,
                layout: if flags & 1 == 0 { HotLayout::Contiguous } else { HotLayout::Scattered },
                hot: if flags & 2 == 0 { HotAccess::Write } else { HotAccess::Read },
                pages: if flags & 4 == 0 { DataPageSize::Base } else { DataPageSize::Huge },
                accesses, class_s: flags & 8 != 0, seconds: (flags & 7 == 7).then_some(Nanos(time)),
                phase: Nanos(time),
                ..WorkloadSpec::new(WorkloadName::ALL[name])
            };
            prop_assert_eq!(WorkloadSpec::parse(&spec.to_string()), Ok(spec));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,40}", key in "[a-z_]{1,9}",
            value in "[0-9.%/kMGiBs-]{0,24}") {
            let _any = WorkloadSpec::parse(&text);
            let _any = WorkloadSpec::parse(&format!("skew,{key}={value}"));
            for key in ["threads", "fast", "size", "hot_share", "accesses", "seconds"] {
                let _any = WorkloadSpec::parse(&format!("skew,{key}={value}"));
            }
        }
    }
}
