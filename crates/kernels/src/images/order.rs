//! In which order an epoch shows the items of a set.

use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// The items of a set in the order of an epoch: each once, shuffled by seed and epoch alone.
pub fn epoch_order(count: u64, seed: u64, epoch: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    for place in (1..order.len()).rev() {
        let mut hasher = SipHasher13::new_with_keys(seed, epoch);
        hasher.write(ORDER_LABEL);
        hasher.write(&(place as u64).to_le_bytes());
        let other = (u128::from(hasher.finish()) * (place as u128 + 1)) >> 64;
        order.swap(place, other as usize);
    }
    order
}

/// Apart from what pictures draw.
const ORDER_LABEL: &[u8; 5] = b"order";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_each_item_once_and_is_an_epochs_own() {
        let order = epoch_order(1000, 1, 2);
        assert_eq!(order, epoch_order(1000, 1, 2));
        assert_ne!(order, epoch_order(1000, 1, 3));
        assert_ne!(order, epoch_order(1000, 2, 2));
        assert!(order.iter().zip(0..).filter(|(item, place)| **item == *place).count() < 20);
        let mut sorted = order;
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..1000));
        assert_eq!(epoch_order(0, 1, 1), []);
    }

    #[test]
    fn orders_do_not_drift() {
        assert_eq!(epoch_order(8, 1, 2), ORDER, "a resumed training would see other pictures");
    }

    const ORDER: [u64; 8] = [0, 2, 3, 5, 4, 1, 6, 7];
}
