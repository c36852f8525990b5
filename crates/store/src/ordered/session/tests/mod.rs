//! Sessions over a cache of few pages, against a map; what is answered is on flash; threads beside each other.

mod behind_tests;
mod bench;
mod crash_tests;
mod group_tests;
mod jam_tests;
mod model_tests;
mod thread_tests;
