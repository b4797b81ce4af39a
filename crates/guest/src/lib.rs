//! Room `guest` of Terrace; see ARCHITECTURE.md.
