//! Pages of numbers that differ little: each word is kept as its difference from the page's least,
//! in as few bytes as the largest of them takes ("frame of reference": Goldstein, Ramakrishnan and
//! Shaft, "Compressing relations and indexes", ICDE 1998, section 2.1; for lines of a cache,
//! Pekhimenko et al., "Base-Delta-Immediate compression", PACT 2012). Indices, offsets, counters
//! and pointers are such. lz4 finds a repetition in each of their words, which makes them slow to
//! compress and to take apart, and larger.
//!
//! ```text
//! | shape, 1 byte: bytes a word << 4 | bytes kept | least word, 8 bytes | what is kept of each word | 7 bytes unused |
//! ```

const PAGE: usize = 4096;
const HEAD: usize = 9;
/// A word is written and read with those that follow it, up to eight bytes.
const TAIL: usize = 7;
/// Bytes that a packed page takes at most.
pub(super) const MOST: usize = HEAD + PAGE / 2 + TAIL;
/// Words that are looked at first.
const SAMPLED_WORDS: usize = 16;
/// A page with more than this part of its words like the one before is left to lz4, which makes
/// more of it.
const ALIKE: (usize, usize) = (3, 4);

/// Words of a page, as many bytes wide.
trait Word: Copy + PartialEq {
    const BYTES: usize;
    fn of(bytes: &[u8]) -> Self;
    /// The difference from another, as a number with a sign, in the word's own width.
    fn minus(self, base: Self) -> i64;
    fn wide(self) -> u64;
}

impl Word for u64 {
    const BYTES: usize = 8;
    fn of(bytes: &[u8]) -> Self {
        bytes.first_chunk().map_or(0, |b| Self::from_le_bytes(*b))
    }
    fn minus(self, base: Self) -> i64 {
        self.wrapping_sub(base) as i64
    }
    fn wide(self) -> u64 {
        self
    }
}

impl Word for u32 {
    const BYTES: usize = 4;
    fn of(bytes: &[u8]) -> Self {
        bytes.first_chunk().map_or(0, |b| Self::from_le_bytes(*b))
    }
    fn minus(self, base: Self) -> i64 {
        i64::from(self.wrapping_sub(base) as i32)
    }
    fn wide(self) -> u64 {
        self.into()
    }
}

/// Packs a whole page; the bytes it takes, none when it would take more than half a page or when
/// lz4 makes more of it.
pub(super) fn pack(page: &[u8], out: &mut [u8]) -> Option<usize> {
    let page: &[u8; PAGE] = page.try_into().ok()?;
    let out: &mut [u8; MOST] = out.first_chunk_mut()?;
    pack_as::<u64>(page, out).or_else(|| pack_as::<u32>(page, out))
}

/// The least and the largest difference from `base`.
fn spread<W: Word>(words: impl Iterator<Item = W>, base: W) -> (i64, i64) {
    words.fold((0, 0), |(least, most), w| {
        let difference = w.minus(base);
        (least.min(difference), most.max(difference))
    })
}

/// Bytes that such differences take; none when it is more than half of the word's.
fn width<W: Word>((least, most): (i64, i64)) -> Option<usize> {
    let range = most.wrapping_sub(least) as u64;
    let bytes = (64 - range.leading_zeros()).div_ceil(8) as usize;
    (bytes <= W::BYTES / 2).then_some(bytes.max(1))
}

fn pack_as<W: Word>(page: &[u8; PAGE], out: &mut [u8; MOST]) -> Option<usize> {
    let words = || page.chunks_exact(W::BYTES).map(W::of);
    let base = W::of(page);
    width::<W>(spread(words().step_by(PAGE / W::BYTES / SAMPLED_WORDS), base))?;
    let all = spread(words(), base);
    let kept = width::<W>(all)?;
    let count = PAGE / W::BYTES;
    let alike = words().zip(words().skip(1)).filter(|(a, b)| a == b).count();
    if alike * ALIKE.1 > count * ALIKE.0 {
        return None;
    }
    let least = base.wide().wrapping_add(all.0 as u64);
    out[0] = (W::BYTES << 4 | kept) as u8;
    out[1..HEAD].copy_from_slice(&least.to_le_bytes());
    for (n, w) in words().enumerate() {
        let difference = w.minus(base).wrapping_sub(all.0) as u64;
        out[HEAD + n * kept..][..8].copy_from_slice(&difference.to_le_bytes());
    }
    Some(HEAD + count * kept + TAIL)
}

/// Fills a page, or its first bytes, from what [`pack`] made. None when it did not make this.
pub(super) fn unpack(packed: &[u8], out: &mut [u8]) -> Option<()> {
    let (head, words) = packed.split_at_checked(HEAD)?;
    let least = u64::from_le_bytes(*head[1..].first_chunk()?);
    let (wide, kept) = (usize::from(head[0] >> 4), usize::from(head[0] & 15));
    if out.len() > PAGE || packed.len() != HEAD + PAGE / wide.max(1) * kept + TAIL {
        return None;
    }
    match (wide, kept) {
        (8, 1) => unpack_as::<8, 1>(words, least, out),
        (8, 2) => unpack_as::<8, 2>(words, least, out),
        (8, 3) => unpack_as::<8, 3>(words, least, out),
        (8, 4) => unpack_as::<8, 4>(words, least, out),
        (4, 1) => unpack_as::<4, 1>(words, least, out),
        (4, 2) => unpack_as::<4, 2>(words, least, out),
        _ => return None,
    }
    Some(())
}

fn unpack_as<const WIDE: usize, const KEPT: usize>(words: &[u8], least: u64, out: &mut [u8]) {
    let mask = (1 << (8 * KEPT)) - 1;
    for (out, eight) in out.chunks_exact_mut(WIDE).zip(words.windows(8).step_by(KEPT)) {
        let word = least.wrapping_add(u64::of(eight) & mask);
        out.copy_from_slice(&word.to_le_bytes()[..WIDE]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::Seed;

    fn page_of(count: usize, word: impl FnMut(usize) -> Vec<u8>) -> Vec<u8> {
        let page: Vec<u8> = (0..count).flat_map(word).collect();
        assert_eq!(page.len(), PAGE);
        page
    }

    fn packed(page: &[u8]) -> Option<Vec<u8>> {
        let mut out = vec![0xAA; MOST];
        let len = pack(page, &mut out)?;
        out.truncate(len);
        let mut back = vec![0xAA; PAGE];
        unpack(&out, &mut back)?;
        assert!(back == page, "shape {:#x}", out[0]);
        Some(out)
    }

    #[test]
    fn words_that_differ_little_come_back_in_as_few_bytes_as_they_differ_by() {
        let mut seed = Seed(5);
        let mut random = || {
            let (r, next) = seed.next();
            seed = next;
            r
        };
        for bits in 1..=32_u32 {
            for base in [0, 1 << 47, u64::MAX, u64::MAX / 2, random()] {
                let (mask, expected) =
                    ((1 << bits) - 1, HEAD + 512 * bits.div_ceil(8) as usize + TAIL);
                let page =
                    page_of(512, |_| base.wrapping_add(random() & mask).to_le_bytes().to_vec());
                let got = packed(&page).map(|p| p.len());
                // One bit alone has half of the words like the one before.
                assert_eq!(got, Some(expected), "{bits} bits from {base:#x}");
            }
        }
        for bits in 1..=16_u32 {
            for base in [0_u32, u32::MAX, u32::MAX / 2, random() as u32] {
                let mask = (1 << bits) - 1;
                let page = page_of(1024, |n| {
                    // As wide as can be in the pairs' upper halves, so that words of eight bytes do
                    // not fit.
                    let word = if n % 2 == 1 && n % 5 == 0 { mask } else { random() as u32 & mask };
                    base.wrapping_add(word).to_le_bytes().to_vec()
                });
                let got = packed(&page).map(|p| p.len());
                assert_eq!(
                    got,
                    Some(HEAD + 1024 * bits.div_ceil(8) as usize + TAIL),
                    "{bits} bits from {base:#x}"
                );
            }
        }
    }

    #[test]
    fn words_around_zero_are_near() {
        let page = page_of(512, |n| (n as i64 % 200 - 100).to_le_bytes().to_vec());
        assert_eq!(packed(&page).map(|p| p.len()), Some(HEAD + 512 + TAIL));
        let page = page_of(1024, |n| (n as i32 % 20_000 - 500).to_le_bytes().to_vec());
        assert_eq!(packed(&page).map(|p| p.len()), Some(HEAD + 2048 + TAIL));
    }

    #[test]
    fn others_are_left_to_lz4() {
        let mut seed = Seed(9);
        let random = page_of(512, |_| {
            let (r, next) = seed.next();
            seed = next;
            r.to_le_bytes().to_vec()
        });
        let mut far_away = page_of(512, |n| n.to_le_bytes().to_vec());
        // Not one of those looked at first.
        far_away[8 * 5..][..8].copy_from_slice(&(u64::MAX / 3).to_le_bytes());
        let numbers = page_of(512, |n| (n as f64 / 3.0).to_le_bytes().to_vec());
        let alike = page_of(512, |n| u64::from(n == 77).to_le_bytes().to_vec());
        let text: Vec<u8> =
            b"lines of text, one after the other\n".iter().copied().cycle().take(PAGE).collect();
        for page in [random, far_away, numbers, alike, text] {
            assert_eq!(packed(&page), None, "{:?}", &page[..16]);
        }
        assert_eq!(pack(&[1; 100], &mut [0; MOST]), None, "less than a page");
    }

    #[test]
    fn what_was_not_packed_is_refused() {
        let page = page_of(512, |n| (n as u64 * 7).to_le_bytes().to_vec());
        let good = packed(&page).unwrap();
        let mut out = vec![0; PAGE];
        for len in 0..good.len() {
            assert_eq!(unpack(&good[..len], &mut out), None, "{len}");
        }
        // Half as wide, and half as much kept, is as long.
        for shape in (0..=255).filter(|s| ![good[0], 0x41].contains(s)) {
            let mut bad = good.clone();
            bad[0] = shape;
            assert!(unpack(&bad, &mut out).is_none(), "{shape:#x}");
        }
        let mut part = vec![0; 80];
        unpack(&good, &mut part).unwrap();
        assert_eq!(part, page[..80]);
    }
}
