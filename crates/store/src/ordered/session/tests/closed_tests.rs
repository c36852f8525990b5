//! Operations that were under way when the last image was written: the search layer stays as the checkpoint of anchors has it.

use super::bench::{Bench, new_flash};
use super::model_tests::put;
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::log::Sync;
use tapetum_base::request::{Outcome, Request};

const KEYS: u32 = 400;
const CLOSED: Outcome = Outcome::Failed(Error::Closed);

fn key(number: u32) -> Vec<u8> {
    format!("{number:06}").into_bytes()
}

/// Nodes and anchors of a closed tree, after `request` was asked for each of its keys.
fn anchors_around(request: impl Fn(&[u8]) -> Request<'_>) -> [u64; 2] {
    let bench = Bench::new(Arc::new(new_flash(1)), 1024, Sync::No);
    let mut client = bench.client();
    for number in 0..KEYS {
        client.run(put(&key(number), &[7; 200]));
    }
    while bench.state.write_back.has_work() || !bench.state.write_back.close(&bench.state) {
        bench.state.write_back.advance(&bench.state, true);
        client.step();
    }
    let before = bench.tree.search.anchors();
    for number in 0..KEYS {
        assert_eq!(client.run(request(&key(number))).0, CLOSED);
    }
    (0..1000).for_each(|_| client.step());
    [before, bench.tree.search.anchors()]
}

#[test]
fn no_node_is_merged_once_the_last_image_was_written() {
    let [before, after] = anchors_around(|key| Request::Delete { key, stamp: None });
    assert!(before > 10);
    assert_eq!(after, before);
}

#[test]
fn no_node_is_split_once_the_last_image_was_written() {
    let [before, after] = anchors_around(|key| put(key, &[7; 900]));
    assert_eq!(after, before);
}
