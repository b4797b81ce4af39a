//! Data objects, and the two files that a program and the tool exchange: the region file, which
//! `start_crash()` writes, and image files, which `crash_restore()` reads. Both have the layout of
//! `terrace_crash.h`.
//!
//! ```text
//! file   = magic:8 count:u64 refused:u64 object{count} content
//! object = kind:u32 element:u32 address:u64 bytes:u64 type:16 name:48
//! ```
//!
//! Content: of all objects but read-only ones, in order. All little-endian.

use serde::Serialize;

const REGION_MAGIC: &[u8; 8] = b"TERRCRR1";
const IMAGE_MAGIC: &[u8; 8] = b"TERRCRI1";
const HEAD: usize = 24;
const OBJECT: usize = 88;
/// Objects that a file may name, as `TERRACE_CRASH_OBJECTS` has it.
pub const MOST_OBJECTS: usize = 256;

/// What a restart does with an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectKind {
    /// It comes from memory as the crash left it.
    Critical,
    /// The same; the program flushes it itself. The first integer is the iteration.
    Consistent,
    /// The program makes it again; it is in no image.
    ReadOnly,
}

/// A data object of the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DataObject {
    /// As the call in the program names it.
    pub name: String,
    /// The name of its elements' type.
    pub element_type: String,
    /// What it is for.
    pub kind: ObjectKind,
    /// Bytes of an element.
    pub element_bytes: u32,
    /// First byte, in the recorded run.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
}

impl DataObject {
    /// First byte behind it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }

    /// Whether images contain it.
    #[must_use]
    pub fn is_restored(&self) -> bool {
        self.kind != ObjectKind::ReadOnly
    }
}

/// Why a region file is of no use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// It has another begin.
    #[error("this is no region file of terrace_crash.h")]
    Magic,
    /// It is shorter than it says.
    #[error("the region file ends early")]
    Short,
    /// It says what cannot be.
    #[error("the region file is damaged: {0}")]
    Damaged(&'static str),
    /// Two objects share bytes.
    #[error("the objects {first} and {second} overlap; name each byte once")]
    Overlap {
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },
    /// More objects than the table takes.
    #[error("{refused} objects more than the {MOST_OBJECTS} that can be named")]
    TooMany {
        /// How many more.
        refused: u64,
    },
    /// Nothing to restart from.
    #[error("the program names no critical data; call critical_data() before start_crash()")]
    Empty,
}

/// Where bytes of the program's memory lie in an image's content.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageLayout {
    /// First byte, byte behind the last and offset of each object, ascending.
    ranges: Vec<(u64, u64, u64)>,
}

impl ImageLayout {
    /// The restored objects among these, one behind the other.
    #[must_use]
    pub fn new(objects: &[DataObject]) -> Self {
        let mut ranges = Vec::new();
        let mut offset = 0;
        for object in objects.iter().filter(|o| o.is_restored() && o.bytes > 0) {
            ranges.push((object.address, object.end(), offset));
            offset += object.bytes;
        }
        ranges.sort_unstable();
        Self { ranges }
    }

    /// The parts of the images' objects that lie in `spans`, which are half-open, ascending and
    /// disjoint, one behind the other; and where each part lies in whole images: offset and bytes.
    #[must_use]
    pub fn cut(&self, spans: &[(u64, u64)]) -> (Self, Vec<(usize, usize)>) {
        let (mut ranges, mut places, mut next) = (Vec::new(), Vec::new(), 0);
        for (from, to) in spans {
            let first = self.ranges.partition_point(|(_, end, _)| end <= from);
            for (start, end, offset) in self.ranges[first..].iter().take_while(|r| r.0 < *to) {
                let (low, high) = ((*start).max(*from), (*end).min(*to));
                ranges.push((low, high, next));
                places.push(((offset + (low - start)) as usize, (high - low) as usize));
                next += high - low;
            }
        }
        (Self { ranges }, places)
    }

    /// Whether any of the bytes from `from` to before `to` is in images.
    #[must_use]
    pub fn overlaps(&self, from: u64, to: u64) -> bool {
        let next = self.ranges.partition_point(|(_, end, _)| *end <= from);
        self.ranges.get(next).is_some_and(|(start, ..)| *start < to)
    }

    /// Puts bytes at `address` into an image's content, as far as they are in images.
    pub fn put(&self, address: u64, value: &[u8], content: &mut [u8]) {
        for (i, byte) in value.iter().enumerate() {
            let at = address.wrapping_add(i as u64);
            let next = self.ranges.partition_point(|(_, end, _)| *end <= at);
            let Some((start, _, offset)) = self.ranges.get(next).filter(|r| r.0 <= at) else {
                continue;
            };
            let place = usize::try_from(offset + (at - start)).ok();
            if let Some(place) = place.and_then(|place| content.get_mut(place)) {
                *place = *byte;
            }
        }
    }
}

/// What a program said at `start_crash()`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionFile {
    /// In the order of the calls.
    pub objects: Vec<DataObject>,
    /// Contents of those that are restored, in order.
    pub content: Vec<u8>,
}

impl RegionFile {
    /// Reads a region file.
    ///
    /// # Errors
    /// [`RegionError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, RegionError> {
        if bytes.len() < 8 || &bytes[..8] != REGION_MAGIC {
            return Err(RegionError::Magic);
        }
        let (count, refused) = (number(bytes, 8)?, number(bytes, 16)?);
        if refused > 0 {
            return Err(RegionError::TooMany { refused });
        }
        if count > MOST_OBJECTS as u64 {
            return Err(RegionError::Damaged("it names more objects than there can be"));
        }
        let mut objects = Vec::new();
        let mut restored = 0u64;
        for i in 0..count as usize {
            let raw = bytes.get(HEAD + OBJECT * i..HEAD + OBJECT * (i + 1));
            let object = parse_object(raw.ok_or(RegionError::Short)?)?;
            if object.is_restored() {
                restored = restored.saturating_add(object.bytes);
            }
            objects.push(object);
        }
        let content = bytes.get(HEAD + OBJECT * objects.len()..).ok_or(RegionError::Short)?;
        match (content.len() as u64).cmp(&restored) {
            std::cmp::Ordering::Less => return Err(RegionError::Short),
            std::cmp::Ordering::Greater => {
                return Err(RegionError::Damaged("it is longer than its objects"))
            }
            std::cmp::Ordering::Equal => {}
        }
        let region = Self { objects, content: content.to_vec() };
        region.check()?;
        Ok(region)
    }

    fn check(&self) -> Result<(), RegionError> {
        if !self.objects.iter().any(|o| o.kind == ObjectKind::Critical && o.bytes > 0) {
            return Err(RegionError::Empty);
        }
        let mut order: Vec<&DataObject> = self.objects.iter().filter(|o| o.bytes > 0).collect();
        order.sort_by_key(|o| o.address);
        for pair in order.windows(2) {
            if pair[0].end() > pair[1].address {
                return Err(RegionError::Overlap {
                    first: pair[0].name.clone(),
                    second: pair[1].name.clone(),
                });
            }
        }
        Ok(())
    }

    /// The object that holds the iteration: the first consistent one of four or eight bytes.
    #[must_use]
    pub fn iteration_object(&self) -> Option<&DataObject> {
        self.objects.iter().find(|o| o.kind == ObjectKind::Consistent && [4, 8].contains(&o.bytes))
    }

    /// An image file with this content of the objects that are restored.
    #[must_use]
    pub fn image(&self, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + OBJECT * self.objects.len() + content.len());
        out.extend_from_slice(IMAGE_MAGIC);
        out.extend_from_slice(&(self.objects.len() as u64).to_le_bytes());
        out.extend_from_slice(&0u64.to_le_bytes());
        for object in &self.objects {
            let kind: u32 = match object.kind {
                ObjectKind::Critical => 1,
                ObjectKind::Consistent => 2,
                ObjectKind::ReadOnly => 3,
            };
            out.extend_from_slice(&kind.to_le_bytes());
            out.extend_from_slice(&object.element_bytes.to_le_bytes());
            out.extend_from_slice(&object.address.to_le_bytes());
            out.extend_from_slice(&object.bytes.to_le_bytes());
            put_text(&mut out, &object.element_type, 16);
            put_text(&mut out, &object.name, 48);
        }
        out.extend_from_slice(content);
        out
    }
}

fn number(bytes: &[u8], at: usize) -> Result<u64, RegionError> {
    let raw = bytes.get(at..at + 8).ok_or(RegionError::Short)?;
    Ok(u64::from_le_bytes(raw.try_into().map_err(|_| RegionError::Short)?))
}

fn parse_object(raw: &[u8]) -> Result<DataObject, RegionError> {
    let small = number(raw, 0)?;
    let kind = match small as u32 {
        1 => ObjectKind::Critical,
        2 => ObjectKind::Consistent,
        3 => ObjectKind::ReadOnly,
        _ => return Err(RegionError::Damaged("an object of no known kind")),
    };
    let (address, bytes) = (number(raw, 8)?, number(raw, 16)?);
    if address.checked_add(bytes).is_none() {
        return Err(RegionError::Damaged("an object beyond all addresses"));
    }
    Ok(DataObject {
        name: text(&raw[40..88]),
        element_type: text(&raw[24..40]),
        kind,
        element_bytes: (small >> 32) as u32,
        address,
        bytes,
    })
}

/// Text up to the first zero; control characters, which would disturb a terminal, are replaced.
fn text(raw: &[u8]) -> String {
    let end = raw.iter().position(|b| *b == 0).unwrap_or(raw.len());
    let text = String::from_utf8_lossy(&raw[..end]);
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn put_text(out: &mut Vec<u8>, text: &str, space: usize) {
    let bytes = &text.as_bytes()[..text.len().min(space - 1)];
    out.extend_from_slice(bytes);
    out.resize(out.len() + space - bytes.len(), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, kind: ObjectKind, address: u64, bytes: u64) -> DataObject {
        DataObject {
            name: name.into(),
            element_type: "double".into(),
            kind,
            element_bytes: 8,
            address,
            bytes,
        }
    }

    fn file(objects: Vec<DataObject>) -> Vec<u8> {
        let restored = objects.iter().filter(|o| o.is_restored()).map(|o| o.bytes).sum::<u64>();
        let region = RegionFile { objects, content: vec![7; restored as usize] };
        let mut bytes = region.image(&region.content);
        bytes[..8].copy_from_slice(REGION_MAGIC);
        bytes
    }

    #[test]
    fn a_region_file_is_read_back() {
        let objects = vec![
            object("x", ObjectKind::Critical, 0x1000, 16),
            object("done", ObjectKind::Consistent, 0x2000, 4),
            object("a", ObjectKind::ReadOnly, 0x3000, 1 << 40),
        ];
        let region = RegionFile::parse(&file(objects.clone())).unwrap();
        assert_eq!(region.objects, objects);
        assert_eq!(region.content, [7; 20]);
        assert_eq!(region.iteration_object().unwrap().name, "done");
    }

    #[test]
    fn what_is_wrong_with_a_region_file_is_said() {
        let good = file(vec![object("x", ObjectKind::Critical, 0x1000, 16)]);
        assert_eq!(RegionFile::parse(b"TERRCRI1"), Err(RegionError::Magic));
        for end in 8..good.len() {
            assert_eq!(RegionFile::parse(&good[..end]), Err(RegionError::Short), "{end}");
        }
        let mut long = good.clone();
        long.push(0);
        assert!(matches!(RegionFile::parse(&long), Err(RegionError::Damaged(_))));
        let overlap = file(vec![
            object("x", ObjectKind::Critical, 0x1000, 16),
            object("y", ObjectKind::Critical, 0x100f, 1),
        ]);
        let error = RegionFile::parse(&overlap).unwrap_err();
        assert_eq!(error.to_string(), "the objects x and y overlap; name each byte once");
        let none = file(vec![object("it", ObjectKind::Consistent, 0x1000, 4)]);
        assert_eq!(RegionFile::parse(&none), Err(RegionError::Empty));
    }
}
