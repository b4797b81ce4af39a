//! Arbitrary bytes as the archive of a gathered tree. Checksums of headers are mended first: they
//! would refuse nearly everything.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_topology::{gather, read_archive, survey};
use terrace_types::Bytes;

fuzz_target!(|data: &[u8]| {
    let mut bytes = data.to_vec();
    for header in bytes.chunks_exact_mut(512).filter(|h| h[257..262] == *b"ustar") {
        header[148..156].copy_from_slice(b"        ");
        let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    let Ok(tree) = read_archive(&bytes, "fuzz") else {
        return;
    };
    match survey(&tree, "fuzz") {
        Ok(found) => {
            assert_eq!(found.machine.check(), Ok(()));
            let mut again = Vec::new();
            if gather(&tree, Bytes(4096), &mut again).is_ok() {
                assert!(read_archive(&again, "fuzz").is_ok());
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
