//! What a unit's bytes are: zeros, or what was written last (a checksum a grain).

use crate::geometry::{PageMask, UnitNo};
use crate::service::Service;
use crate::store::StoreError;
use terrace_sys::ChunkFrame;
use terrace_types::Bytes;

impl Service {
    /// Each grain of a mask with its bytes in the slot.
    fn each<'a>(&self, unit: UnitNo, mask: PageMask, slot: &'a ChunkFrame) -> Vec<(u32, &'a [u8])> {
        let g = self.pager.geometry();
        let size = g.grain_bytes();
        let bits = (0..g.grains_per_unit()).filter(|b| mask >> b & 1 == 1);
        bits.map(|b| {
            // The map's last grain may be cut short.
            let len = g.parts(unit, 1 << b).next().map_or(0, |p| p.len());
            let at = b as usize * size;
            (b, &slot.bytes()[at..at + len])
        })
        .collect()
    }

    /// Grains of a mask that are zeros, where those need not be stored.
    pub(crate) fn zeros(&self, unit: UnitNo, mask: PageMask, slot: &ChunkFrame) -> PageMask {
        if self.store.holds() > Bytes::ZERO {
            return 0;
        }
        let all = self.each(unit, mask, slot);
        all.into_iter().filter(|(_, bytes)| is_zero(bytes)).fold(0, |m, (b, _)| m | 1 << b)
    }

    /// Notes the checksums of what is about to be written.
    pub(crate) fn sum_up(&mut self, unit: UnitNo, mask: PageMask, slot: &ChunkFrame) {
        let grains = self.each(unit, mask, slot);
        let first = self.pager.geometry().grain_at(unit, 0) as usize;
        if let Some(sums) = &mut self.sums {
            for (b, bytes) in grains {
                sums[first + b as usize] = crc32fast::hash(bytes);
            }
        }
    }

    /// Whether what was read is what was written.
    pub(crate) fn verify(
        &self,
        unit: UnitNo,
        mask: PageMask,
        slot: &ChunkFrame,
    ) -> Result<(), StoreError> {
        let Some(sums) = &self.sums else {
            return Ok(());
        };
        let g = self.pager.geometry();
        for (b, bytes) in self.each(unit, mask, slot) {
            let grain = g.grain_at(unit, b);
            if sums[grain as usize] != crc32fast::hash(bytes) {
                return Err(StoreError::Altered {
                    store: self.store.name(),
                    at: grain * g.grain_bytes() as u64,
                });
            }
        }
        Ok(())
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(64).all(|c| c.iter().fold(0, |a, b| a | b) == 0)
}
