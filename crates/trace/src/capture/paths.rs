//! Paths: rows of blocks that a program executes again and again, with the accesses they made. What
//! follows from the code and from the order of the words (sizes, directions, dependences, gaps) is
//! worked out once a path; where the same words come again, addresses aside, only addresses are
//! left to look at. Words that fit no path are worked on one by one.

use super::code::{
    depends, grown, AddressOrigin, BlockSpan, CapturedCode, RegisterAges, OLD, REGISTERS,
};
use super::growth::{LoopLookahead, PathGrowth};
use super::threads::{is_store, Pending};
use super::{is_block, IS_WORD};
use crate::encode::{AccessRow, RowAccess, RowValue};
use crate::event::AccessDescriptor;

/// Blocks of a path at most: longer ones cost less a block, and fit less often.
const MAX_BLOCKS: usize = 16;
/// No block is added to a path that has so many accesses.
const ENOUGH: usize = 24;
/// Accesses of a path at most.
const MAX_ACCESSES: usize = 512;
/// A path that comes back to where it began ends there if it has so many accesses.
const WORTHWHILE: usize = 1;
/// Paths that begin with the same block.
const VARIANTS: usize = 4;
/// So often is a path looked for behind a block; one that has had so many is different each time.
const TRIES: u8 = 64;
/// Words of all paths together; beyond, all are forgotten. Bounds memory, at some 40 bytes a word.
const MAX_WORDS: usize = 4 << 20;

/// The address bits of an access word.
pub const ADDRESS: u64 = 0xffff_ffff_ffff;

/// Where a value comes from: registers as the path found them (bit `r`), and a load of the path,
/// counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Origin {
    registers: u16,
    load: u16,
}

impl Origin {
    /// How many loads ago the latest of them was made, after `loads` of the path.
    #[inline]
    fn age(self, ages: &RegisterAges, loads: u16) -> u8 {
        let (mut age, mut left) = (OLD, self.registers);
        while left != 0 {
            age = age.min(ages[left.trailing_zeros() as usize % REGISTERS]);
            left &= left - 1;
        }
        let mut age = u16::from(age) + loads;
        if self.load > 0 {
            age = age.min(loads - self.load);
        }
        age.min(u16::from(OLD)) as u8
    }
}

/// What an access's dependence follows from.
#[derive(Debug, Clone, Copy)]
struct AccessDependence {
    address: Origin,
    /// Loads of the path before it.
    loads: u16,
}

/// The same for one whose address comes from registers as the path found them: another path before
/// it may change it.
#[derive(Debug, Clone, Copy)]
struct OpenAccess {
    /// Which access of the path.
    at: u16,
    /// The registers, at most two; the same twice where it is one.
    registers: [u8; 2],
    /// Further ones.
    more: u16,
    /// Loads of the path before it, and how many loads ago the latest load of the path was that its
    /// address comes from.
    loads: u8,
    latest: u8,
}

impl OpenAccess {
    fn new(at: usize, reported: &AccessDependence) -> Option<Self> {
        let mut left = reported.address.registers;
        if left == 0 {
            return None;
        }
        let mut next = || {
            let register = left.trailing_zeros() as u8;
            left &= left.wrapping_sub(1);
            register
        };
        let first = next();
        let second = if reported.address.registers.count_ones() > 1 { next() } else { first };
        let none = Origin { registers: 0, ..reported.address };
        let latest = none.age(&[OLD; REGISTERS], reported.loads);
        let loads = reported.loads.min(u16::from(OLD)) as u8;
        Some(Self { at: at as u16, registers: [first, second], more: left, loads, latest })
    }

    #[inline]
    fn age(&self, ages: &RegisterAges) -> u8 {
        let register = |r: u8| ages[usize::from(r) % REGISTERS];
        let [first, second] = self.registers;
        let (mut age, mut left) = (register(first).min(register(second)), self.more);
        while left != 0 {
            age = age.min(register(left.trailing_zeros() as u8));
            left &= left - 1;
        }
        (age + self.loads).min(self.latest)
    }
}

/// A word that may be another eight bytes of the access before.
#[derive(Debug, Clone, Copy)]
struct AccessPiece {
    at: u16,
    /// Where the word of the eight bytes before is.
    before: u16,
    /// Whether it is another eight bytes.
    joins: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Path {
    /// Words as they must be.
    words: Box<[u64]>,
    /// Which bits of them: all of a block's, all but the address of an access's, none of a value's.
    bits: Box<[u64]>,
    pieces: Box<[AccessPiece]>,
    /// Registers left changed, and whence.
    changes: Box<[(u8, Origin)]>,
    /// Accesses whose dependence is not the same each time.
    open: Box<[OpenAccess]>,
    blocks: u8,
    uses: u32,
    /// Loads and stores it makes, and instructions it executes.
    pub loads: u16,
    pub stores: u16,
    pub instructions: u64,
    /// Positions of its first and last access, in instructions from its begin and from 1.
    pub first: u64,
    pub last: u64,
    /// As the writer takes it. Dependences are those of `before`.
    pub row: AccessRow,
    before: RegisterAges,
    after: RegisterAges,
    /// What follows from its coming again.
    pub again: LoopLookahead,
}

impl Path {
    /// Whether these words are this path, and a block follows.
    #[inline]
    pub fn is(&self, words: &[u64]) -> bool {
        let Some((words, [next, ..])) = words.split_at_checked(self.words.len()) else {
            return false;
        };
        // The first blocks tell most paths apart.
        let differ = |words: &[u64], range: std::ops::Range<usize>| {
            let mine = self.words[range.clone()].iter().zip(&self.bits[range]);
            mine.zip(words).fold(0, |differ, ((word, bits), w)| differ | (w ^ word) & bits) != 0
        };
        let (head, tail) = words.split_at(words.len().min(8));
        is_block(*next)
            && !differ(head, 0..head.len())
            && !differ(tail, head.len()..words.len())
            && self.joins(words)
    }

    /// How many words it takes.
    #[inline]
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Ages of the registers before to ages after; `row` then has the dependences that follow from
    /// those before.
    #[inline]
    pub fn pass(&mut self, before: &RegisterAges) -> RegisterAges {
        if *before != self.before {
            self.look_again(before);
        }
        self.after
    }

    /// How many times in a row the path begins here, as far as its dependences stay the same and as
    /// it is worth looking; it has come twice just before. `row` then has these dependences.
    #[inline]
    pub fn turns(&mut self, words: &[u64], ages: &RegisterAges) -> usize {
        let (most, mut turns) = (self.again.most(ages), 0);
        if most == 0 {
            return 0;
        }
        for turn in words.chunks_exact(self.words.len().max(1)).take(most) {
            let mine = self.words.iter().zip(&self.bits);
            let differ =
                mine.zip(turn).fold(0, |differ, ((word, bits), w)| differ | (w ^ word) & bits);
            if differ != 0 || !self.joins(turn) {
                break;
            }
            turns += 1;
        }
        if !words.get(turns * self.words.len()).is_some_and(|next| is_block(*next)) {
            turns = turns.saturating_sub(1);
        }
        if turns > 0 {
            self.pass(ages);
        }
        turns
    }

    /// Instructions from its last access to its first one in the next turn.
    pub fn between(&self) -> u32 {
        (self.instructions + self.first - self.last) as u32
    }

    /// Whether pieces of accesses join as they did.
    #[inline]
    fn joins(&self, words: &[u64]) -> bool {
        self.pieces.iter().all(|piece| {
            let behind = words.get(usize::from(piece.before)).map(|w| w.wrapping_add(8));
            (words.get(usize::from(piece.at)).copied() == behind) == piece.joins
        })
    }

    fn look_again(&mut self, before: &RegisterAges) {
        for open in &self.open {
            self.row.depend(usize::from(open.at), depends(open.age(before)));
        }
        self.before = *before;
        self.after = grown(*before, u64::from(self.loads));
        for (register, origin) in &self.changes {
            self.after[usize::from(*register) % REGISTERS] = origin.age(before, self.loads);
        }
    }
}

/// Paths that begin with a block, the longest in front: of two that fit, that is the better one.
#[derive(Debug)]
struct Head {
    paths: Vec<Path>,
    /// Blocks that a path may have. Halved each time there are too many paths; 0 where the block
    /// cannot begin one.
    limit: u8,
    tries: u8,
}

/// All paths known.
#[derive(Debug, Default)]
pub struct Paths {
    /// By number of the block: where its head is, plus one.
    index: Vec<u32>,
    heads: Vec<Head>,
    words: usize,
    /// The word of a store is followed by one with what it wrote.
    values: bool,
}

impl Paths {
    /// No path is known. `values`: the word of a store is followed by one with what it wrote.
    pub fn new(values: bool) -> Self {
        Self { values, ..Self::default() }
    }

    /// Where to look for paths that begin with the block that `words` begin with. None for a block
    /// whose code is not known, and for one that is executed for the first time.
    #[inline]
    pub fn head(&mut self, code: &CapturedCode, words: &[u64]) -> Option<usize> {
        let number = (words.first()? & 0xffff_ffff) as usize;
        match self.index.get(number) {
            Some(at) if *at > 0 => Some(*at as usize - 1),
            _ => {
                self.visit(code, number);
                None
            }
        }
    }

    /// The path that `words` are, of those that begin there. May learn one.
    #[inline]
    pub fn find(&mut self, at: usize, code: &CapturedCode, words: &[u64]) -> Option<&mut Path> {
        let found = match self.heads.get(at)?.paths.iter().position(|path| path.is(words)) {
            Some(found) => found,
            None => self.learn(at, code, words)?,
        };
        let path = self.heads.get_mut(at)?.paths.get_mut(found)?;
        path.uses = path.uses.saturating_add(1);
        Some(path)
    }

    /// What is known of a block's code has changed.
    pub fn forget(&mut self) {
        *self = Self::new(self.values);
    }

    /// A block executed for the first time may never come again.
    #[cold]
    fn visit(&mut self, code: &CapturedCode, number: usize) {
        if code.get(number).is_none() {
            return;
        }
        if self.index.len() <= number {
            self.index.resize(number + 1, 0);
        }
        self.heads.push(Head { paths: Vec::new(), limit: MAX_BLOCKS as u8, tries: 0 });
        self.index[number] = self.heads.len() as u32;
    }

    /// Adds a path that `words` are to a head's others; at which place.
    #[cold]
    fn learn(&mut self, at: usize, code: &CapturedCode, words: &[u64]) -> Option<usize> {
        if self.words > MAX_WORDS {
            self.forget();
            return None;
        }
        let head = self.heads.get_mut(at)?;
        if head.limit == 0 || head.tries >= TRIES {
            return None;
        }
        if head.paths.len() >= VARIANTS {
            head.limit = (head.limit / 2).max(1);
            let least =
                head.paths.iter().enumerate().min_by_key(|(_, path)| path.uses).map(|(at, _)| at);
            self.words -= least.map_or(0, |at| head.paths.remove(at).words.len());
            head.paths.iter_mut().for_each(|path| path.uses /= 2);
        }
        head.tries += 1;
        let mut draft = Draft::new(code, self.values);
        while draft.blocks < head.limit && draft.add(words) {}
        if draft.unfit && draft.blocks == 0 {
            head.limit = 0;
        }
        let path = draft.finish()?;
        self.words += path.words.len();
        let place = head.paths.partition_point(|other| other.blocks > path.blocks);
        head.paths.insert(place, path);
        Some(place)
    }
}

/// An access of a path being put together.
struct Drafted {
    word: u16,
    size: u32,
    store: bool,
    pc: u64,
    position: u64,
    reported: AccessDependence,
}

/// A path being put together, block by block.
struct Draft<'a> {
    code: &'a CapturedCode,
    /// Words that are in it.
    length: usize,
    blocks: u8,
    accesses: Vec<Drafted>,
    pieces: Vec<AccessPiece>,
    values: Option<Vec<RowValue>>,
    registers: [Origin; REGISTERS],
    loads: u16,
    instructions: u64,
    words: Vec<u64>,
    bits: Vec<u64>,
    /// The next block makes accesses that cannot be encoded ahead.
    unfit: bool,
}

impl<'a> Draft<'a> {
    fn new(code: &'a CapturedCode, values: bool) -> Self {
        Self {
            code,
            values: values.then(Vec::new),
            length: 0,
            blocks: 0,
            accesses: Vec::new(),
            pieces: Vec::new(),
            registers: std::array::from_fn(|r| Origin { registers: 1 << r, load: 0 }),
            loads: 0,
            instructions: 0,
            words: Vec::new(),
            bits: Vec::new(),
            unfit: false,
        }
    }

    /// Adds the next block of `words`, which begin where the path does; `false` where the path must
    /// end before it.
    fn add(&mut self, words: &[u64]) -> bool {
        let Some(([block, ..], rest)) =
            words.get(self.length..).map(|w| w.split_at(w.len().min(1)))
        else {
            return false;
        };
        let Some(span) = self.code.get((block & 0xffff_ffff) as usize) else { return false };
        let count = self.count_words(rest);
        let ends = rest.get(count).is_some_and(|next| is_block(*next));
        let closes =
            self.blocks > 0 && words.first() == Some(block) && self.accesses.len() >= WORTHWHILE;
        let space = self.accesses.len() < ENOUGH && self.accesses.len() + count <= MAX_ACCESSES;
        if !is_block(*block) || closes || !ends {
            return false;
        }
        if !space {
            self.unfit = true;
            return false;
        }
        let (accesses, pieces) = (self.accesses.len(), self.pieces.len());
        let values = self.values.as_ref().map_or(0, Vec::len);
        let loads = self.loads;
        let Some(loaded) = self.add_accesses(span, *block, &rest[..count]) else {
            self.unfit = true;
            self.accesses.truncate(accesses);
            self.pieces.truncate(pieces);
            self.values.iter_mut().for_each(|list| list.truncate(values));
            self.loads = loads;
            return false;
        };
        let mut after = self.registers;
        for (register, source) in self.code.changes(span) {
            after[usize::from(*register) % REGISTERS] = self.origin(*source, &loaded);
        }
        self.registers = after;
        self.words.push(*block);
        self.bits.push(u64::MAX);
        let mut is_value = false;
        for word in &rest[..count] {
            let bits = if is_value { 0 } else { !ADDRESS };
            self.words.push(word & bits);
            self.bits.push(bits);
            is_value = self.values.is_some() && !is_value && is_store(*word);
        }
        self.instructions += length(*block);
        self.length += 1 + count;
        self.blocks += 1;
        true
    }

    /// How many words the accesses of the block are, in front of the next block.
    fn count_words(&self, words: &[u64]) -> usize {
        let mut count = 0;
        while let Some(word) = words.get(count).filter(|word| **word & IS_WORD == 0) {
            count += 1 + usize::from(self.values.is_some() && is_store(*word));
        }
        count.min(words.len())
    }

    /// Adds the accesses of a block. Which load of the path each of its instructions made, by
    /// index; nothing if an access is not as code makes it.
    fn add_accesses(
        &mut self,
        span: BlockSpan,
        block: u64,
        words: &[u64],
    ) -> Option<Vec<(usize, u16)>> {
        let (mut loaded, mut pending) = (Vec::new(), None::<Pending>);
        let mut here = (self.length + 1..).zip(words);
        while let Some((at, word)) = here.next() {
            let has_value = self.values.is_some() && is_store(*word);
            if let Some(values) = self.values.as_mut().filter(|_| has_value) {
                here.next();
                let bytes = Pending::new(*word).size;
                // What is not known of wider pieces reads as zero.
                if bytes > 8 {
                    return None;
                }
                values.push(RowValue { word: at as u16 + 1, bytes: bytes as u8 });
            }
            if let Some(before) = &mut pending {
                let may_join = before.may_absorb(*word);
                let joins = before.absorb(*word);
                if may_join {
                    let before = at as u16 - 1 - u16::from(has_value);
                    self.pieces.push(AccessPiece { at: at as u16, before, joins });
                }
                if joins {
                    self.accesses.last_mut()?.size = before.size;
                    continue;
                }
            }
            let access = Pending::new(*word);
            pending = Some(access);
            let index = access.index();
            let site = self.code.site(span, index).filter(|site| site.pc != 0)?;
            let position = self.instructions + index as u64 + 1;
            let behind = self.accesses.last().is_none_or(|last| last.position <= position);
            if index as u64 >= length(block) || !behind {
                return None;
            }
            let reported =
                AccessDependence { address: self.origin(site.address, &loaded), loads: self.loads };
            if !access.store() {
                self.loads += 1;
                loaded.push((index, self.loads));
            }
            let (size, store, word) = (access.size, access.store(), at as u16);
            self.accesses.push(Drafted { word, size, store, pc: site.pc, position, reported });
        }
        self.accesses
            .iter()
            .all(|a| AccessDescriptor::new(a.size, a.store, 0).size().is_some())
            .then_some(loaded)
    }

    /// Whence a value of the block being added comes.
    fn origin(&self, source: AddressOrigin, loaded: &[(usize, u16)]) -> Origin {
        let mut origin = Origin::default();
        let more = (0..REGISTERS as u8).filter(|r| source.more >> r & 1 == 1);
        for register in source.registers.into_iter().chain(more) {
            if let Some(from) = self.registers.get(usize::from(register)) {
                origin.registers |= from.registers;
                origin.load = origin.load.max(from.load);
            }
        }
        let load = loaded.iter().rev().find(|(index, _)| index + 1 == usize::from(source.load));
        origin.load = origin.load.max(load.map_or(0, |(_, load)| *load));
        origin
    }

    fn finish(self) -> Option<Path> {
        if self.blocks == 0 {
            return None;
        }
        let (mut row, mut last) = (AccessRow::default(), None);
        for access in &self.accesses {
            let kind = AccessDescriptor::new(access.size, access.store, 0);
            let gap = last.map_or(0, |last| access.position - last);
            last = Some(access.position);
            row.add(RowAccess::new(access.pc, access.word), kind, gap as u32);
        }
        self.values.iter().flatten().for_each(|value| row.add_value(*value));
        let unchanged = |r: usize| Origin { registers: 1 << r, load: 0 };
        let changes =
            self.registers.iter().enumerate().filter(|(r, origin)| **origin != unchanged(*r));
        let mut path = Path {
            words: self.words.into(),
            bits: self.bits.into(),
            pieces: self.pieces.into(),
            changes: changes.map(|(r, origin)| (r as u8, *origin)).collect(),
            open: self
                .accesses
                .iter()
                .enumerate()
                .filter_map(|(at, access)| OpenAccess::new(at, &access.reported))
                .collect(),
            blocks: self.blocks,
            uses: 0,
            loads: self.loads,
            stores: self.accesses.iter().filter(|access| access.store).count() as u16,
            instructions: self.instructions,
            first: self.accesses.first().map_or(0, |access| access.position),
            last: last.unwrap_or(0),
            row,
            // No register is as young as this: `look_again` sees a difference.
            before: [u8::MAX; REGISTERS],
            after: [0; REGISTERS],
            again: LoopLookahead::default(),
        };
        for (at, access) in self.accesses.iter().enumerate() {
            path.row.depend(
                at,
                depends(access.reported.address.age(&[OLD; REGISTERS], access.reported.loads)),
            );
        }
        path.look_again(&[OLD; REGISTERS]);
        if path.row.len() > 0 {
            let changes: Vec<_> =
                path.changes.iter().map(|(r, o)| (*r, o.registers, o.load)).collect();
            let address = |open: &OpenAccess| {
                let [first, second] = open.registers;
                (1 << first | 1 << second | open.more, open.loads, open.latest)
            };
            path.again = LoopLookahead::new(PathGrowth::new(
                path.loads,
                &changes,
                path.open.iter().map(address),
            ));
        }
        Some(path)
    }
}

/// Instructions of a block, from its word.
fn length(block: u64) -> u64 {
    block >> 32 & 0xfff
}
