//! The kernel's lists of CPUs and nodes: `0-3,8`, and bit masks: `00000000,0000000c`.

/// A list or mask that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CpuListError {
    /// Not of the kernel's form.
    #[error("not a list such as 0-3,8")]
    Form,
    /// A number above the caller's limit.
    #[error("a number above {0}")]
    TooHigh(u32),
}

/// Reads a list such as `0-3,8` (`bitmap_parselist` in Linux' `lib/bitmap-str.c`, without strides),
/// ascending and free of doubles. The empty text is the empty list; no number may be above `max`.
pub fn parse_list(text: &str, max: u32) -> Result<Vec<u32>, CpuListError> {
    let mut out = Vec::new();
    let text = text.trim();
    if text.is_empty() {
        return Ok(out);
    }
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(CpuListError::Form);
        }
        if last > max {
            return Err(CpuListError::TooHigh(max));
        }
        // Many overlapping ranges must not multiply: nothing honest repeats a number.
        if out.len() + (last - first) as usize > max as usize {
            return Err(CpuListError::Form);
        }
        out.extend(first..=last);
    }
    out.sort_unstable();
    out.dedup();
    Ok(out)
}

/// Reads a mask of 32-bit words, highest first, as in `cpumap` and hwloc's bitmaps
/// (`0x00000001,0x0`). hwloc leaves a zero word empty and writes an infinite set as `0xf...f`; the
/// latter is refused.
pub fn parse_mask(text: &str, max: u32) -> Result<Vec<u32>, CpuListError> {
    let words: Vec<&str> = text.trim().split(',').collect();
    // A mask is at most as wide as the limit, with zero words above it allowed for the kernel's
    // width.
    if words.len() > 4096 {
        return Err(CpuListError::Form);
    }
    let mut out = Vec::new();
    for (index, word) in words.iter().rev().enumerate() {
        let digits = word.strip_prefix("0x").unwrap_or(word);
        if digits.len() > 8 || (digits.is_empty() && words.len() == 1) {
            return Err(CpuListError::Form);
        }
        if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(CpuListError::Form);
        }
        let bits = if digits.is_empty() {
            0
        } else {
            u32::from_str_radix(digits, 16).map_err(|_| CpuListError::Form)?
        };
        for bit in (0..32).filter(|bit| bits & (1 << bit) != 0) {
            let value = index as u32 * 32 + bit;
            if value > max {
                return Err(CpuListError::TooHigh(max));
            }
            out.push(value);
        }
    }
    Ok(out)
}

/// Numbers as the kernel writes them: `0-3,8`, ascending and without doubles.
#[must_use]
pub fn list_numbers(numbers: &[u32]) -> String {
    let mut numbers = numbers.to_vec();
    numbers.sort_unstable();
    numbers.dedup();
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, last)) if number.checked_sub(1) == Some(*last) => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let show = |(a, b): &(u32, u32)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    parts.iter().map(show).collect::<Vec<_>>().join(",")
}

fn number(text: &str) -> Result<u32, CpuListError> {
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(CpuListError::Form);
    }
    text.parse().map_err(|_| CpuListError::Form)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_as_the_kernel_writes_them() {
        assert_eq!(parse_list("0-3,8\n", 100), Ok(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("", 100), Ok(vec![]));
        assert_eq!(parse_list("\n", 100), Ok(vec![]));
        assert_eq!(parse_list("5", 100), Ok(vec![5]));
        assert_eq!(parse_list("0-100", 100).map(|l| l.len()), Ok(101));
        assert_eq!(parse_list("101", 100), Err(CpuListError::TooHigh(100)));
        for bad in ["3-0", "a", "1,,2", "-", "1-", "0x1", "4294967296", "0-99,0-99,0-99"] {
            assert_eq!(parse_list(bad, 100), Err(CpuListError::Form), "{bad}");
        }
    }

    #[test]
    fn masks_as_the_kernel_and_hwloc_write_them() {
        assert_eq!(parse_mask("0000,00000000,0000000c\n", 8191), Ok(vec![2, 3]));
        assert_eq!(parse_mask("0x00000001,,0x00000003", 8191), Ok(vec![0, 1, 64]));
        assert_eq!(parse_mask("0x0", 8191), Ok(vec![]));
        assert_eq!(parse_mask("0x2", 0), Err(CpuListError::TooHigh(0)));
        for bad in ["", "0xf...f", "0x123456789", "zz", "+1"] {
            assert_eq!(parse_mask(bad, 8191), Err(CpuListError::Form), "{bad}");
        }
    }
}
