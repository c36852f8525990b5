use super::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use tapetum_kernels::expiry::Expiry;
use tapetum_kernels::record::Marks;

const NOW: u32 = 1_000_000;
const USED: Access = Access { was_read: true, idle_seconds: 0 };

fn hash(n: u64) -> HashKey {
    HashKey::of(&[3; 16], &n.to_le_bytes())
}

fn item(stamp: u64, value_bytes: usize) -> ItemHead {
    ItemHead { flags: stamp as u32, expiry: Expiry::NONE, stamp, value_bytes, marks: Marks::NONE }
}

fn value(n: u64, stamp: u64, length: usize) -> Vec<u8> {
    (0..length).map(|at| (n.wrapping_mul(31) ^ stamp.wrapping_mul(17) ^ at as u64) as u8).collect()
}

fn get(tier: &Tier, n: u64) -> Option<(ItemHead, Vec<u8>)> {
    get_at(tier, n, NOW)
}

fn get_at(tier: &Tier, n: u64, now: u32) -> Option<(ItemHead, Vec<u8>)> {
    let mut values = vec![1, 2, 3];
    let item = tier.get(hash(n), now, &mut values, |_, _, _| true)?;
    Some((item, values.split_off(3)))
}

#[test]
fn holds_what_was_put_and_neither_more_nor_older() {
    let tier = Tier::new(1 << 20, Slabs::default()).unwrap().unwrap();
    let mut latest: HashMap<u64, (u64, usize)> = HashMap::new();
    let (mut hits, mut chance) = (0, 1u64);
    for stamp in 1..200_000u64 {
        chance = chance.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let n = (chance >> 33) % 5000;
        match chance >> 60 {
            0 => {
                tier.remove(hash(n));
                latest.remove(&n);
            }
            1..=4 => {
                tier.remove(hash(n));
                let length = (chance >> 20) as usize % 3000;
                tier.put(hash(n), NOW, item(stamp, length), &value(n, stamp, length), USED);
                latest.insert(n, (stamp, length));
            }
            _ => {
                if let Some(found) = get(&tier, n) {
                    let (stamp, length) = latest[&n];
                    assert_eq!(found, (item(stamp, length), value(n, stamp, length)));
                    hits += 1;
                }
            }
        }
    }
    assert!(hits > 5_000, "{hits} hits");
}

#[test]
fn stays_within_its_bytes_whatever_it_is_given() {
    for (bytes, length) in [(1 << 20, 10), (8 << 20, 100), (32 << 20, 1000), (200 << 20, 100_000)] {
        let tier = Tier::new(bytes, Slabs::default()).unwrap().unwrap();
        for n in 0..bytes / (length as u64 + 40) * 2 {
            tier.put(hash(n), NOW, item(n, length), &vec![7; length], USED);
        }
        assert!(tier.bytes() <= bytes, "{} of {bytes} with values of {length}", tier.bytes());
        let used: u64 = tier.slabs(NOW).iter().map(|class| class.slots_used * class.slot_bytes as u64).sum();
        assert!(used > bytes / 3, "{used} of {bytes} with values of {length}");
    }
}

#[test]
fn stays_within_its_bytes_when_sizes_change_again_and_again() {
    let bytes = 8 << 20;
    let tier = Tier::new(bytes, Slabs::default()).unwrap().unwrap();
    let mut n = 0;
    for length in [88, 150, 210, 280, 10, 340, 88, 400] {
        for _ in 0..6 * bytes / (length as u64 + 40) {
            n += 1;
            tier.put(hash(n), NOW, item(n, length), &vec![7; length], USED);
        }
        assert!(tier.bytes() <= bytes, "{} of {bytes} with values of {length}", tier.bytes());
    }
}

#[test]
fn what_comes_is_taken_in_when_tiny_items_fill_the_index() {
    let tier = Tier::new(1 << 20, Slabs::default()).unwrap().unwrap();
    // Now and then both buckets of a key are full.
    let put = |numbers: std::ops::Range<u64>| {
        numbers.filter(|n| tier.put(hash(*n), NOW, item(*n, 10), &[7; 10], USED)).count()
    };
    let taken = put(0..100_000);
    assert!(taken > 99_000, "{taken} of 100,000");
    // Those that are asked for stay while others pass.
    let asked = (99_000..99_900).filter(|n| get(&tier, *n).is_some()).count();
    put(100_000..109_000);
    let kept = (99_000..99_900).filter(|n| tier.has(hash(*n))).count();
    assert!(asked > 880 && kept > asked * 9 / 10, "{kept} of {asked}");
    // And larger ones find room.
    (200_000..200_500).for_each(|n| {
        tier.put(hash(n), NOW, item(n, 500), &[7; 500], USED);
    });
    let kept = (200_000..200_500).filter(|n| tier.has(hash(*n))).count();
    assert!(kept > 200, "{kept} of 500");
}

#[test]
fn what_is_too_large_or_too_little_is_left_out() {
    let tier = Tier::new(1 << 20, Slabs { factor: 2.0, slab_bytes: None }).unwrap().unwrap();
    tier.put(hash(1), NOW, item(1, 1 << 20), &[0; 1 << 20], USED);
    assert_eq!(get(&tier, 1), None);
    assert!(Tier::new(100, Slabs::default()).unwrap().is_none());
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the point is real threads")]
fn readers_beside_writers_see_whole_items() {
    let tier = Tier::new(1 << 20, Slabs { factor: 1.5, slab_bytes: None }).unwrap().unwrap();
    let (done, newest) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..2u64 {
            let (tier, done) = (&tier, &done);
            scope.spawn(move || {
                let mut n = reader;
                while !done.load(Ordering::Relaxed) {
                    n = (n + 7) % 900;
                    // So late that every use is noted.
                    if let Some((item, bytes)) = get_at(tier, n, NOW + 60) {
                        assert_eq!(bytes, value(n, item.stamp, bytes.len()), "of one write");
                        assert_eq!(bytes.len() as u64, item.stamp % 1700);
                    }
                }
            });
        }
        for stamp in 1..150_000u64 {
            let n = stamp.wrapping_mul(2654435761) % 900;
            tier.remove(hash(n));
            if stamp % 5 != 0 {
                let value = value(n, stamp, stamp as usize % 1700);
                tier.put(hash(n), NOW, item(stamp, value.len()), &value, USED);
            }
            newest.store(stamp, Ordering::Relaxed);
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn slabs_are_as_told() {
    for (factor, slab_bytes, classes_max) in [(1.1, 4 << 10, 40), (2.0, 1 << 20, 15), (16.0, 16 << 20, 8)] {
        let tier = Tier::new(256 << 20, Slabs { factor, slab_bytes: Some(slab_bytes) }).unwrap().unwrap();
        let classes = tier.slabs(NOW);
        assert_eq!(classes.last().map(|class| class.slot_bytes as u64), Some(slab_bytes));
        assert!(classes.len() <= classes_max, "{} classes", classes.len());
        let length = slab_bytes as usize - 40;
        assert!(tier.put(hash(1), NOW, item(1, length), &vec![7; length], USED));
        assert!(!tier.put(hash(2), NOW, item(1, length + 1), &vec![7; length + 1], USED));
        assert!(tier.bytes() <= 256 << 20);
    }
}

#[test]
fn a_use_is_noted_once_a_minute() {
    let tier = Tier::new(1 << 20, Slabs::default()).unwrap().unwrap();
    let used = Access { was_read: false, idle_seconds: 0 };
    assert!(tier.put(hash(1), NOW, item(1, 10), &[7; 10], used));
    let access = |now| tier.access(hash(1), now).unwrap();
    let get = |now| {
        let mut shown = None;
        let show = |_: &mut Vec<u8>, _: &ItemHead, access: &dyn Fn() -> Access| {
            shown = Some(access());
            true
        };
        tier.get(hash(1), now, &mut Vec::new(), show).unwrap();
        shown.unwrap()
    };
    assert_eq!(access(NOW + 5), Access { was_read: false, idle_seconds: 5 });
    assert_eq!(get(NOW + 59), Access { was_read: false, idle_seconds: 59 });
    // As it was before this use, which is the first to be noted.
    assert_eq!(get(NOW + 60), Access { was_read: true, idle_seconds: 60 });
    assert_eq!(access(NOW + 62), Access { was_read: true, idle_seconds: 2 });
    assert_eq!(tier.access(hash(2), NOW), None);
}

#[test]
fn classes_say_what_they_hold_what_moved_on_and_how_long_nobody_asked_for_it() {
    let tier = Tier::new(1 << 20, Slabs::default()).unwrap().unwrap();
    let idle = |idle_seconds| Access { was_read: false, idle_seconds };
    let put = |n, access| tier.put(hash(n), NOW, item(1, 80), &[7; 80], access);
    // The first is asked for again, and so moves on when its turn comes.
    assert!(put(0, idle(900)) && put(1, idle(600)) && put(2, idle(300)));
    get(&tier, 0).unwrap();
    let class = |now| tier.slabs(now).into_iter().find(|class| class.slots_used > 0).unwrap();
    assert_eq!((class(NOW).item_bytes, class(NOW).small.slots, class(NOW).main.slots), (3 * 120, 3, 0));
    assert_eq!((class(NOW).small.idle_seconds, class(NOW + 5).small.idle_seconds), (0, 5), "it was asked for just now");
    tier.remove(hash(2));
    assert_eq!((class(NOW).item_bytes, class(NOW).small.slots), (2 * 120, 3), "an empty slot keeps its turn");
    let mut next = 3;
    while class(NOW).evictions == 0 {
        put(next, idle(0));
        next += 1;
    }
    let full = class(NOW);
    assert_eq!((full.evicted_idle_seconds, full.moves_to_main, full.main.slots), (600, 1, 1));
    assert_eq!(full.item_bytes, full.slots_used * 120);
    assert_eq!((full.main.idle_seconds, full.small.idle_seconds), (0, 0));
}
