//! What can be wrong with a fabric or a message.

/// A fabric that cannot be built, or a message that it cannot carry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// Two endpoints or switches have one name.
    #[error("two parts of the fabric are called {name:?}; give each its own name")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A link ends at something that does not exist.
    #[error("link {link} ends at {name:?}, which is no host, pool, manager or switch")]
    UnknownEnd {
        /// The link, as `a - b`.
        link: String,
        /// The end that does not exist.
        name: String,
    },
    /// A link closes a cycle.
    #[error("link {link} closes a cycle; a fabric is a tree, so remove one link of the cycle")]
    Cycle {
        /// The link, as `a - b`.
        link: String,
    },
    /// A part is not connected to the first one.
    #[error("no link leads from {from:?} to {name:?}; connect {name:?} to a switch")]
    Gap {
        /// The first part of the fabric.
        from: String,
        /// The part that is not reached.
        name: String,
    },
    /// A link or switch has a bandwidth of zero.
    #[error("{name} has a bandwidth of zero; give a positive one, or none for no limit")]
    NoBandwidth {
        /// The link or switch.
        name: String,
    },
    /// A latency beyond [`crate::topology::MAX_LATENCY`].
    #[error("{name} has a latency of {latency_ns} ns; give at most {most_ns} ns")]
    Latency {
        /// The link or switch.
        name: String,
        /// Its latency, nanoseconds.
        latency_ns: u64,
        /// The largest one, nanoseconds.
        most_ns: u64,
    },
    /// More parts than [`crate::topology::MAX_VERTICES`], or none.
    #[error("the fabric has {count} hosts, pools and switches; give 1 to {most}")]
    Size {
        /// How many it has.
        count: usize,
        /// The largest number.
        most: usize,
    },
    /// A message from or to a switch or an unknown vertex, or through an endpoint.
    #[error("no route from {from} to {to}: messages go from endpoint to endpoint over switches")]
    NoRoute {
        /// The sender.
        from: String,
        /// The receiver.
        to: String,
    },
    /// A message that is sent before the time up to which the fabric has run.
    #[error("message {id} is sent at {sent_ps} ps, but the fabric is at {now_ps} ps already")]
    SentInPast {
        /// The message.
        id: u64,
        /// When it is sent, picoseconds.
        sent_ps: u64,
        /// The fabric's time, picoseconds.
        now_ps: u64,
    },
    /// A traffic class without weight or with a cap of zero.
    #[error("traffic class {class} has a weight or cap of zero; give positive ones")]
    NoShare {
        /// The class.
        class: u16,
    },
}
