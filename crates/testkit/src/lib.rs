//! Room `testkit` of Terrace; see ARCHITECTURE.md.
