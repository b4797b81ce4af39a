//! Quantities written with their unit, as in machine files: `192 MiB`, `100 GB/s`.

use terrace_types::{Bytes, BytesPerSec};

/// Units of size by name, largest first. Decimal ones are read, never written.
const SIZES: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Units of throughput by name, largest first. Binary ones are read, never written.
const RATES: [(&str, u64); 8] = [
    ("TB/s", 1_000_000_000_000),
    ("GB/s", 1_000_000_000),
    ("MB/s", 1_000_000),
    ("kB/s", 1_000),
    ("GiB/s", 1 << 30),
    ("MiB/s", 1 << 20),
    ("KiB/s", 1 << 10),
    ("B/s", 1),
];

/// Reads a size such as `192 MiB` or `1.5 GiB`. `None` unless it is a whole number of bytes.
#[must_use]
pub fn parse_bytes(text: &str) -> Option<Bytes> {
    parse(text, &SIZES).map(Bytes)
}

/// Reads a throughput such as `4.6 GB/s`. `None` unless it is a whole number of bytes a second.
#[must_use]
pub fn parse_rate(text: &str) -> Option<BytesPerSec> {
    parse(text, &RATES).map(BytesPerSec)
}

/// Writes a size so that [`parse_bytes`] gives exactly the same back.
#[must_use]
pub fn format_bytes(bytes: Bytes) -> String {
    format(bytes.get(), &SIZES[..4], "B")
}

/// Writes a throughput so that [`parse_rate`] gives exactly the same back.
#[must_use]
pub fn format_rate(rate: BytesPerSec) -> String {
    format(rate.get(), &RATES[1..3], "B/s")
}

fn format(value: u64, units: &[(&str, u64)], base: &str) -> String {
    for (name, scale) in units {
        if value >= *scale && value % scale == 0 {
            return format!("{} {name}", value / scale);
        }
    }
    format!("{value} {base}")
}

/// Exact decimal arithmetic: `13.7 GB/s` must not pick up a floating-point tail.
fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))?;
    let (number, unit) = text.split_at(split);
    let scale = units.iter().find(|(name, _)| *name == unit.trim_start())?.1;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: String = whole.chars().filter(|c| *c != '_').collect();
    if whole.is_empty() || fraction.len() > 12 || (number.contains('.') && fraction.is_empty()) {
        return None;
    }
    let mut total = u128::from(whole.parse::<u64>().ok()?) * u128::from(scale);
    if !fraction.is_empty() {
        let digits = u128::from(fraction.parse::<u64>().ok()?) * u128::from(scale);
        let divisor = 10u128.pow(fraction.len() as u32);
        if digits % divisor != 0 {
            return None;
        }
        total += digits / divisor;
    }
    u64::try_from(total).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_rates_are_exact() {
        assert_eq!(parse_bytes("192 MiB"), Some(Bytes::mib(192)));
        assert_eq!(parse_bytes("1.5 GiB"), Some(Bytes(3 << 29)));
        assert_eq!(parse_bytes("64B"), Some(Bytes(64)));
        assert_eq!(parse_rate("4.6 GB/s"), Some(BytesPerSec::mb(4_600)));
        assert_eq!(parse_rate("100 GB/s"), Some(BytesPerSec::gb(100)));
        assert_eq!(parse_rate("1_000 MB/s"), Some(BytesPerSec::gb(1)));
    }

    #[test]
    fn what_has_no_unit_or_makes_no_sense_is_refused() {
        for text in [
            "",
            "192",
            "MiB",
            "-1 MiB",
            "1e9 B",
            "1.5 B",
            "1. GiB",
            "NaN B",
            "99999999999 TiB",
            "1 XB",
        ] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
        for text in ["100", "100 GB", "GB/s", "0.0000000000001 GB/s"] {
            assert_eq!(parse_rate(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for value in [0, 1, 1023, 1024, 3 << 29, 799_063_146_496, u64::MAX] {
            assert_eq!(parse_bytes(&format_bytes(Bytes(value))), Some(Bytes(value)));
            assert_eq!(parse_rate(&format_rate(BytesPerSec(value))), Some(BytesPerSec(value)));
        }
    }
}
