use super::*;

const UNIT: usize = 1 << 16;

/// An area of a unit all of whose pages hold a byte, and an empty slot; none where this kernel
/// or user cannot have them.
fn filled() -> Option<(FarArea, ChunkFrame, usize)> {
    let uffd = Uffd::open().map_err(|e| println!("skipped: {e}")).ok()?;
    let features = uffd.features();
    if !features.move_pages {
        println!("skipped: this kernel moves no pages");
        return None;
    }
    let area = FarArea::map(uffd, UNIT, UNIT).expect("area");
    let mut slots = area.frames(2, UNIT).expect("slots");
    let (slot, mut source) = (slots.remove(0), slots.remove(0));
    for (n, page) in source.bytes_mut().chunks_mut(area.page).enumerate() {
        page.fill(n as u8 + 1);
    }
    area.install(&(0..UNIT), &source, 0, false, true).expect("installed");
    let page = area.page;
    Some((area, slot, page))
}

fn holds_all(slot: &ChunkFrame, page: usize) -> bool {
    slot.bytes().chunks(page).enumerate().all(|(n, bytes)| bytes.iter().all(|b| *b == n as u8 + 1))
}

#[test]
fn unreported_moves_are_reported() {
    let Some((area, mut slot, page)) = filled() else {
        return;
    };
    // As the kernel does it: three pages from the third on are moved, and nothing is said.
    let untold = area.uffd.move_to(
        slot.at(2 * page) as u64,
        area.address() + 2 * page as u64,
        3 * page as u64,
    );
    assert_eq!(untold, (3 * page as u64, 0));
    assert_eq!(area.extract(&(0..UNIT), &mut slot, 0, false), Extracted { bytes: UNIT, errno: 0 });
    assert!(holds_all(&slot, page));
}

#[test]
fn pages_that_did_not_move_are_not_reported() {
    let Some((area, mut slot, page)) = filled() else {
        return;
    };
    // A slot that is not empty, against the contract: the page is still where it was.
    slot.bytes_mut()[4 * page] = 99;
    assert_eq!(
        area.extract(&(0..UNIT), &mut slot, 0, false),
        Extracted { bytes: 4 * page, errno: libc::EEXIST }
    );
    assert_eq!(
        area.words()[4 * page / 8].load(std::sync::atomic::Ordering::Relaxed),
        0x0505_0505_0505_0505
    );
}
