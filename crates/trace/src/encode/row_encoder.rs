//! A row that comes again and again, as the body of a loop does. Each of its accesses is then
//! encoded by the step from the address of the same access a turn before, with the dictionary line
//! it was encoded with then. So one access's addresses of all turns are looked at, then the next
//! one's, and what is known of the instructions is written down once, at the end.

use super::{class, AccessRow, BlockBuilder, RowAccess, ADDRESS, ESCAPE, NEARBY, PATIENCE, TRIED};
use crate::frame::BLOCK_ACCESSES;

/// Accesses of a row at most, so that those of the turn before are nearby.
const MOST: usize = NEARBY as usize;

/// One access of the row.
#[derive(Debug, Clone, Copy, Default)]
struct Lane {
    /// Which of a turn's words holds the address.
    word: usize,
    class: u16,
    /// Its place among the accesses of its class.
    among: usize,
    slot: usize,
    /// What is known of the instruction from the turn before.
    address: u64,
    step: i64,
    narrower: u8,
}

/// Kept from call to call for its memory alone.
#[derive(Debug)]
pub struct RowEncoder {
    lanes: [Lane; MOST],
    codes: [u8; MOST],
    pc_codes: [u16; MOST],
}

impl RowEncoder {
    pub fn new() -> Self {
        Self { lanes: [Lane::default(); MOST], codes: [0; MOST], pc_codes: [0; MOST] }
    }
}

impl Lane {
    /// Tells turns to `out` in the way of `tell`, of an address and the step to it, until that has
    /// none for one; how many.
    #[inline]
    fn tell<'a, T: 'a>(
        &self,
        words: impl Iterator<Item = &'a u64>,
        out: impl Iterator<Item = &'a mut T>,
        mut tell: impl FnMut(u64, i64) -> Option<T>,
    ) -> usize {
        let (mut last, mut turns) = (self.address, 0);
        for (word, out) in words.zip(out) {
            let address = word & ADDRESS;
            let Some(reported) = tell(address, address.wrapping_sub(last) as i64) else { break };
            *out = reported;
            last = address;
            turns += 1;
        }
        turns
    }

    /// Steps of one byte, as long as they are.
    #[inline]
    fn near<'a>(
        &self,
        words: impl Iterator<Item = &'a u64>,
        out: impl Iterator<Item = &'a mut u8>,
    ) -> usize {
        self.tell(words, out, |_, step| (step == i64::from(step as i8)).then_some(step as u8))
    }

    /// Steps of two bytes, until one does not fit or one byte has done for a while.
    #[inline]
    fn middle<'a>(
        &self,
        words: impl Iterator<Item = &'a u64>,
        out: impl Iterator<Item = &'a mut u16>,
    ) -> usize {
        let mut narrower = self.narrower;
        self.tell(words, out, |_, step| {
            narrower = if step == i64::from(step as i8) { narrower + 1 } else { 0 };
            (step == i64::from(step as i16) && narrower < PATIENCE).then_some(step as u16)
        })
    }

    /// Whole addresses, until two bytes have done for a while or a step is that of the turn before.
    #[inline]
    fn whole<'a>(
        &self,
        words: impl Iterator<Item = &'a u64>,
        out: impl Iterator<Item = &'a mut u64>,
    ) -> usize {
        let (mut before, mut narrower) = (self.step, self.narrower);
        self.tell(words, out, |address, step| {
            let narrow = step == i64::from(step as i16);
            let again = !narrow && step == before;
            narrower = if narrow { narrower + 1 } else { 0 };
            before = step;
            (narrower < PATIENCE && !again).then_some(address)
        })
    }

    /// Of how many turns up to this one the steps would have fitted a narrower class, as the
    /// context counts them.
    fn narrower(&self, turns: usize, step: impl Fn(usize) -> i64) -> u8 {
        let fits = |step: i64| match self.class {
            class::MIDDLE => step == i64::from(step as i8),
            class::WHOLE => step == i64::from(step as i16),
            _ => false,
        };
        let run = (0..turns)
            .rev()
            .take(usize::from(PATIENCE))
            .take_while(|turn| fits(step(*turn)))
            .count();
        run as u8 + if run == turns { self.narrower } else { 0 }
    }
}

impl BlockBuilder {
    /// Adds a row as often as it comes in `words`, a turn each `stride` words, in the way of
    /// [`BlockBuilder::push_row`], as long as all its accesses are encoded as in the turn before;
    /// how often that was. The row was the last to be added, and `gap` is that of its first access
    /// in each turn.
    pub fn push_again(&mut self, words: &[u64], stride: usize, row: &AccessRow, gap: u32) -> usize {
        let count = row.places.len();
        let lies_within = |place: &RowAccess| usize::from(place.word) < stride;
        if !row.apart || !(1..=MOST).contains(&count) || !row.places.iter().all(lies_within) {
            return 0;
        }
        let space = BLOCK_ACCESSES - self.len().min(BLOCK_ACCESSES);
        let most = (words.len() / stride).min(space / count);
        // Without space for a turn, places in the columns that are computed below may lie behind
        // their ends.
        if most == 0 {
            return 0;
        }
        let Some(each) = self.as_before(row, gap) else { return 0 };
        let Self { again, columns, .. } = self;
        let (lanes, steps) = (&again.lanes[..count], &mut columns.steps);
        let turns = lanes.iter().fold(most, |turns, lane| {
            let words = words[lane.word..].iter().step_by(stride).take(turns);
            let begin = steps.used[usize::from(lane.class & 3)] + lane.among;
            let apart = each[usize::from(lane.class & 3)].max(1);
            match lane.class {
                class::NEAR => lane.near(words, steps.near[begin..].iter_mut().step_by(apart)),
                class::MIDDLE => {
                    lane.middle(words, steps.middle[begin..].iter_mut().step_by(apart))
                }
                _ => lane.whole(words, steps.whole[begin..].iter_mut().step_by(apart)),
            }
        });
        if turns > 0 {
            self.done(&words[..turns * stride], stride, row, each);
        }
        turns
    }

    /// Prepares `again` if each access would be encoded as it was encoded last; how many there are
    /// of each class.
    #[inline]
    fn as_before(&mut self, row: &AccessRow, gap: u32) -> Option<[usize; 4]> {
        let (mut each, mut gap, count) = ([0; 4], u64::from(gap) << 24, row.places.len() as u64);
        let again = self.again.lanes.iter_mut().zip(&mut self.again.codes);
        for (at, ((place, rest), (lane, code))) in
            row.places.iter().zip(&row.rests).zip(again).enumerate()
        {
            let slot = usize::from(place.slot) % self.contexts.len();
            let (context, rest) = (&self.contexts[slot], rest | gap);
            gap = 0;
            let class = context.line as u16 & 3;
            let same = context.pc == place.pc
                && context.position > self.begin
                && self.total + 1 + at as u64 - context.position == count
                && u64::from(context.back) == count
                && context.line ^ rest == context.line & 0xffff
                && u16::from(context.class) == class
                && class != class::FAR
                && context.code != ESCAPE;
            if !same {
                return None;
            }
            let among = each[usize::from(class)];
            each[usize::from(class)] += 1;
            let (word, address, step) = (usize::from(place.word), context.address, context.step);
            *lane = Lane { word, class, among, slot, address, step, narrower: context.narrower };
            *code = context.code;
        }
        Some(each)
    }

    /// So many turns were encoded: what follows from it for the columns and for what is known of
    /// the instructions.
    fn done(&mut self, words: &[u64], stride: usize, row: &AccessRow, each: [usize; 4]) {
        let (turns, count) = (words.len() / stride, row.places.len());
        let address = |turn: usize, lane: &Lane| words[turn * stride + lane.word] & ADDRESS;
        for lane in &self.again.lanes[..count] {
            let step = |turn: usize| {
                let before = if turn > 0 { address(turn - 1, lane) } else { lane.address };
                address(turn, lane).wrapping_sub(before) as i64
            };
            let context = &mut self.contexts[lane.slot];
            context.narrower = lane.narrower(turns, step);
            context.step = step(turns - 1);
            context.address = address(turns - 1, lane);
            context.position += (turns * count) as u64;
        }
        if self.pcs {
            for (at, lane) in self.again.lanes[..count].iter().enumerate() {
                self.again.pc_codes[at] = self.contexts[lane.slot].pc_code;
            }
            let codes = &self.again.pc_codes[..count];
            for (shift, plane) in [0, 8].into_iter().zip(&mut self.columns.pcs) {
                let begin = plane.len();
                let end = begin + turns * count;
                plane.extend(codes.iter().map(|code| (code >> shift) as u8));
                while plane.len() < end {
                    let more = (plane.len() - begin).min(end - plane.len());
                    plane.extend_from_within(begin..begin + more);
                }
            }
        }
        if !row.values.is_empty() {
            let turns = words.chunks_exact(stride);
            turns.for_each(|turn| self.columns.push_values(turn, &row.values));
        }
        let begin = self.len();
        let shapes = &mut self.columns.shapes[begin..begin + turns * count];
        shapes[..count].copy_from_slice(&self.again.codes[..count]);
        let mut filled = count;
        while filled < shapes.len() {
            let more = filled.min(shapes.len() - filled);
            shapes.copy_within(..more, filled);
            filled += more;
        }
        self.columns.steps.used.iter_mut().zip(each).for_each(|(used, each)| *used += turns * each);
        self.columns.stores += row.stores * turns as u32;
        self.total += (turns * count) as u64;
        let latest = (0..turns)
            .rev()
            .flat_map(|turn| self.again.lanes[..count].iter().rev().map(move |lane| (turn, lane)));
        for (back, (turn, lane)) in latest.take(TRIED).enumerate() {
            self.recent[((self.total - back as u64) % TRIED as u64) as usize] = address(turn, lane);
        }
    }
}
