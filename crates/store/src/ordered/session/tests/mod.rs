//! Sessions over a cache of few pages, compared with a map; the durability of answers; several threads.

mod behind_tests;
mod bench;
mod closed_tests;
mod crash_tests;
mod group_tests;
mod jam_tests;
mod model_tests;
mod thread_tests;
