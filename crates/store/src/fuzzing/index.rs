//! The index against a map, with growth; and images of anything.

use super::Input;
use crate::hashed::index::model::{Model, uniform};
use crate::hashed::index::{GlobalIndex, IndexGeometry, IndexImage, IndexRestorer, PartitionShape};
use std::collections::BTreeMap;
use tapetum_kernels::hash::HashKey;

/// Hash keys of which many share long prefixes with others.
fn hash_key(input: &mut Input<'_>) -> HashKey {
    let (stem, shared) = (u64::from(input.u8() % 8), u32::from(input.u8()) % 128);
    let below = u128::MAX >> shared;
    HashKey(uniform(stem).0 & !below | uniform(1000 + u64::from(input.u16())).0 & below)
}

fn geometry(input: &mut Input<'_>) -> IndexGeometry {
    let fingerprint_bits = u32::from(input.u8()) % 13;
    IndexGeometry { partition_bits: u32::from(input.u8()) % 3, fingerprint_bits, payload_bits: 14 }
}

/// Limits of one input.
const KEYS_MAX: usize = 160;
const STEPS_MAX: usize = 24;
const IMAGE_BATCHES_MAX: usize = 4;

/// Batches of puts and removals, and now and then a rebuild with little room or longer payloads.
pub fn index(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let geometry = geometry(&mut input);
    let mut model = Model::new(geometry);
    let mut batch = BTreeMap::new();
    let mut steps = 0;
    while !input.is_empty() && model.owners.len() < KEYS_MAX && steps < STEPS_MAX {
        steps += 1;
        let what = input.u8();
        match what & 7 {
            0 => {
                model.merge(&std::mem::take(&mut batch));
                model.check();
            }
            1 => {
                // Room for less than there is makes chains of extensions.
                let (partition, room) = (input.below(geometry.partitions()), f64::from(input.u8()) / 128.0);
                model.rebuild(partition, room);
            }
            2 => model.index.widen(14 + u32::from(what >> 4)),
            3 => {
                // Many at once, from one number on: a growth.
                let (first, count) = (u64::from(input.u16()), u64::from(input.u8() / 2));
                steps += 4;
                batch.extend((first..first + count).map(|number| (uniform(number), what & 8 == 0)));
            }
            4 if !model.map.is_empty() => {
                let place = input.below(model.map.len());
                batch.extend(model.map.keys().nth(place).map(|&hash| (hash, what & 8 == 0)));
            }
            _ => {
                batch.insert(hash_key(&mut input), what & 8 == 0);
            }
        }
    }
    model.merge(&batch);
    model.check();
    let all = model.map.keys().map(|&hash| (hash, false)).collect();
    model.merge(&all);
    model.check();
    assert_eq!(model.index.extension_buckets_used(), 0);
}

/// An index comes back from its image; shapes that it cannot have are refused, and so is an image that is too short.
pub fn index_image(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let geometry = geometry(&mut input);
    let spoil = input.u8();
    let spoilt = PartitionShape {
        buckets: input.number(),
        payload_bits: input.number(),
        entries: input.u64(),
        extensions_free: input.number(),
        extensions_fresh: input.number(),
        extensions_used: input.number(),
    };
    let cut = usize::from(input.u16());
    let mut model = Model::new(geometry);
    for _ in 0..IMAGE_BATCHES_MAX {
        if input.is_empty() || model.owners.len() >= KEYS_MAX {
            break;
        }
        let (first, count) = (u64::from(input.u8()), u64::from(input.u8()));
        model.merge(&(first..first + count).map(|number| (uniform(number), first & 1 == 0)).collect());
    }
    let image = IndexImage::of(&model.index);
    let words: Vec<u8> = image.words().flat_map(u64::to_le_bytes).collect();
    assert_eq!(image.bytes(), words.len() as u64);
    let mut shapes = image.shapes();
    drop(image);
    let restored = GlobalIndex::new(geometry).expect("memory");
    if spoil & 1 == 1 {
        let place = usize::from(spoil >> 1) % shapes.len();
        shapes[place] = spoilt;
        if let Some(mut restorer) = IndexRestorer::new(&restored, &shapes, words.len() as u64) {
            restorer.push(&words);
            let _ = restorer.install();
        }
        return;
    }
    let mut restorer = IndexRestorer::new(&restored, &shapes, words.len() as u64).expect("it fits");
    let cut = cut.min(words.len() / 8) * 8;
    restorer.push(&words[..cut]);
    restorer.push(&words[cut..]);
    restorer.install().expect("it is whole");
    model.index = restored;
    model.check();
    let mut short = IndexRestorer::new(&model.index, &shapes, words.len() as u64).expect("it fits");
    short.push(&words[8..]);
    assert!(short.install().is_err(), "an image without a word");
}
