//! Choices of a stack file, by name.

macro_rules! choices {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),* $(,)? }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vdoc])* $variant),* }

        impl $name {
            /// All of them, by name in stack files.
            pub const NAMED: &'static [(&'static str, Self)] = &[$(($text, Self::$variant)),*];

            /// Its name in stack files.
            #[must_use]
            pub fn name(self) -> &'static str {
                Self::NAMED.iter().find(|n| n.1 == self).map_or("", |n| n.0)
            }
        }
    };
}

choices! {
    /// Standard that the interface follows; it gives timings, refresh and currents their defaults.
    Generation {
        /// JESD235.
        Hbm1 = "hbm1",
        /// JESD235A.
        Hbm2 = "hbm2",
        /// JESD235C.
        Hbm2e = "hbm2e",
        /// JESD238.
        Hbm3 = "hbm3",
        /// JESD238B and faster parts.
        Hbm3e = "hbm3e",
        /// JESD270-4.
        Hbm4 = "hbm4",
        /// DDR4 with stacked dies (JESD79-4-1).
        Ddr4Stacked = "ddr4-3ds",
    }
}

choices! {
    /// How dies are bonded (the paper, table 1).
    Bonding {
        /// Solder bumps with underfill.
        Microbump = "microbump",
        /// Dielectric and metal pads bonded directly.
        Hybrid = "hybrid",
        /// Oxide bonded, vias etched afterwards.
        DirectOxide = "direct-oxide",
    }
}

choices! {
    /// Which dies a set of data vias serves (the paper, figure 4).
    TsvStructure {
        /// One die each.
        PointToPoint = "point-to-point",
        /// Several dies, as logical ranks of a channel: a switch of die costs a gap.
        SharedRanks = "shared",
        /// Several dies that hold banks of the same channel in step: no gap.
        SharedChannel = "shared-channel",
    }
}

choices! {
    /// Where the stack is.
    Placement {
        /// On an interposer beside the processor.
        Beside = "beside",
        /// On top of the processor.
        OnProcessor = "on-processor",
    }
}

choices! {
    /// What a refresh command refreshes.
    RefreshMode {
        /// All banks of a pseudo-channel: it stands still meanwhile.
        AllBank = "all-bank",
        /// One bank at a time: the others go on.
        SingleBank = "single-bank",
    }
}

choices! {
    /// Whose temperature sets the refresh rate.
    RefreshRate {
        /// The hottest die's, for all.
        Stack = "stack",
        /// Each die's own (K. Sohn et al., JSSC 52(1), 2017).
        Die = "die",
    }
}

choices! {
    /// Error correction of what is stored.
    EccCode {
        /// None.
        None = "none",
        /// Single error correction, double error detection, 8 bits for each 64.
        Secded = "secded",
        /// One symbol of 16 bits in a 256-bit word (HBM3's on-die code: JESD238).
        Symbol = "symbol",
    }
}
