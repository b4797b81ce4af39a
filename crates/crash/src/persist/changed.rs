//! The bytes that differ between images: those of lines that are stored to. Images of a large
//! object of which little changes are kept and compared by these alone.

use super::{PersistentOperation, LINE};
use crate::region::ImageLayout;

/// Which bytes of images operations may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedBytes {
    layout: ImageLayout,
    /// Where the parts lie in whole images: offset and bytes.
    places: Vec<(usize, usize)>,
}

impl ChangedBytes {
    /// Those that `operations` change in images of this layout.
    #[must_use]
    pub fn new(operations: &[PersistentOperation], layout: &ImageLayout) -> Self {
        let line = |operation: &PersistentOperation| match operation {
            PersistentOperation::Store { address, .. } => Some(address / LINE),
            _ => None,
        };
        let mut lines: Vec<u64> = operations.iter().filter_map(line).collect();
        lines.sort_unstable();
        lines.dedup();
        let mut spans: Vec<(u64, u64)> = Vec::new();
        for line in lines {
            let (from, to) = (line * LINE, (line * LINE).saturating_add(LINE));
            match spans.last_mut().filter(|last| last.1 == from) {
                Some(last) => last.1 = to,
                None => spans.push((from, to)),
            }
        }
        let (layout, places) = layout.cut(&spans);
        Self { layout, places }
    }

    /// Where the changed bytes lie in what [`pick`](Self::pick) gives.
    #[must_use]
    pub fn layout(&self) -> &ImageLayout {
        &self.layout
    }

    /// The changed bytes of a whole image.
    #[must_use]
    pub fn pick(&self, whole: &[u8]) -> Vec<u8> {
        let parts = self.places.iter().filter_map(|(at, bytes)| whole.get(*at..at + bytes));
        parts.flatten().copied().collect()
    }

    /// The whole image with these changed bytes, the others as in `whole`.
    #[must_use]
    pub fn put_back(&self, changed: &[u8], whole: &[u8]) -> Vec<u8> {
        let mut image = whole.to_vec();
        let mut from = 0;
        for (at, bytes) in &self.places {
            let parts = (image.get_mut(*at..at + bytes), changed.get(from..from + bytes));
            if let (Some(to), Some(part)) = parts {
                to.copy_from_slice(part);
            }
            from += bytes;
        }
        image
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::{DataObject, ObjectKind};

    #[test]
    fn changed_bytes_are_those_of_lines_that_are_stored_to() {
        let object = |address, bytes| DataObject {
            name: "o".into(),
            element_type: "char".into(),
            kind: ObjectKind::Critical,
            element_bytes: 1,
            address,
            bytes,
        };
        // The second object lies before the first in memory and behind it in images.
        let layout = ImageLayout::new(&[object(0x1000, 200), object(0x100, 10)]);
        let store = |address| PersistentOperation::Store {
            address,
            value: vec![9],
            non_temporal: false,
            pc: 0,
        };
        let operations =
            [store(0x1041), store(0x1080), store(0x105), PersistentOperation::Fence { pc: 0 }];
        let changed = ChangedBytes::new(&operations, &layout);
        let whole: Vec<u8> = (0..210).map(|i| i as u8).collect();
        let picked = changed.pick(&whole);
        // All ten bytes of the one object, then two lines of the other.
        assert_eq!(picked, (200..210).chain(64..192).map(|i| i as u8).collect::<Vec<u8>>());
        assert_eq!(changed.put_back(&picked, &whole), whole);
        let mut image = picked.clone();
        changed.layout().put(0x1041, &[255], &mut image);
        let back = changed.put_back(&image, &whole);
        let differs: Vec<usize> = (0..210).filter(|i| back[*i] != whole[*i]).collect();
        assert_eq!(differs, [0x41]);
    }
}
