//! The extents that hashed keyspaces take: segments, large values in segments, and large values that log records name.

use crate::hashed::catalog::Catalog;
use crate::hashed::large::{Claims, LargeEntries, LargeExtents};
use crate::hashed::segment::{Descriptor, LargeEntry};
use std::sync::Arc;
use tapetum_base::error::Error;
use tapetum_base::log::Place;
use tapetum_base::media::extents::{ExtentOwner, Extents};
use tapetum_base::media::superblock::Superblock;
use tapetum_base::recover::log_zones::Replayed;
use tapetum_drive::fail_point;
use tapetum_kernels::data_page::PAGE_BYTES;
use tapetum_kernels::hash::HashKey;
use tapetum_kernels::reference::Reference;

/// Takes the extents of all segments; an error where a description does not fit, or two have one extent.
pub fn claim_segments(extents: &mut Extents, superblock: &Superblock, catalog: &Catalog) -> Result<(), Error> {
    let Superblock { geometry, capacity_bytes, .. } = superblock;
    for descriptor in catalog.segments.values().map(|state| &state.descriptor) {
        let pages_in =
            |extents: &[u32], page_bytes| extents.len() as u64 * u64::from(geometry.pages_per_extent(page_bytes));
        let pages = pages_in(&descriptor.data_extents, descriptor.data_page_size.bytes());
        let key_pages = pages_in(&descriptor.key_extents, PAGE_BYTES);
        let fits = u64::from(descriptor.data_pages) <= pages
            && u64::from(descriptor.key_pages) + u64::from(descriptor.fence_pages) <= key_pages
            && descriptor.fence_pages > 0
            && descriptor.number < geometry.segments(*capacity_bytes);
        if !fits || !descriptor.extents().all(|extent| extents.claim(ExtentOwner::Flush, extent)) {
            return Err(Error::Corrupt(format!(
                "the manifest's description of segment {} makes no sense",
                descriptor.number
            )));
        }
    }
    Ok(())
}

/// Takes the extents of the large values of a segment.
pub fn claim_large(claims: &mut Claims, descriptor: &Descriptor) -> Result<LargeEntries, Error> {
    let claim = |large: &LargeEntry| {
        let extents =
            claims.claim(&large.runs, || format!("record {} of segment {}", large.entry, descriptor.number))?;
        Ok((large.entry, extents))
    };
    descriptor.large.iter().map(claim).collect()
}

/// Takes the extents that log records name.
pub fn claim_log(claims: &mut Claims, replayed: &Replayed) -> Result<Vec<(HashKey, Place, Arc<LargeExtents>)>, Error> {
    let mut owned = Vec::with_capacity(replayed.large.len());
    for (hash, place, reference) in &replayed.large {
        let whose = || format!("the log record at byte {} of buffer {}", place.place, place.buffer);
        let Ok(reference) = Reference::parse(reference) else {
            return Err(Error::Corrupt(format!("{} names a large value that makes no sense", whose())));
        };
        let extents = match fail_point!(ForgetLargeInLog) {
            true => claims.forget(&reference.runs),
            false => claims.claim(&reference.runs, whose)?,
        };
        owned.push((*hash, *place, extents));
    }
    Ok(owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashed::catalog::SegmentState;
    use crate::hashed::catalog::tests::descriptor;
    use std::collections::BTreeMap;
    use tapetum_base::media::geometry::Geometry;
    use tapetum_kernels::data_page::PageSize;

    #[test]
    fn a_segment_that_does_not_fit_its_extents_is_refused() {
        let geometry = Geometry::new(1 << 30, 2 << 20, 2, 512).unwrap();
        let superblock = Superblock::new(1, [0; 16], geometry);
        let fits = Descriptor {
            data_pages: 2 * geometry.pages_per_extent(PageSize::Large.bytes()),
            key_pages: geometry.pages_per_extent(PAGE_BYTES) - 1,
            data_extents: vec![3, 5],
            key_extents: vec![4],
            ..descriptor(geometry.segments(1 << 30) - 1, 9)
        };
        let claim = |descriptor: &Descriptor| {
            let state = SegmentState::new(descriptor.clone());
            let catalog = Catalog { segments: BTreeMap::from([(descriptor.number, state)]), ..Catalog::default() };
            let mut extents = Extents::new(geometry.extents(1 << 30));
            claim_segments(&mut extents, &superblock, &catalog).ok().map(|()| extents)
        };
        let taken = geometry.extents(1 << 30) - claim(&fits).expect("it fits").free_count();
        assert_eq!(taken, 3, "its own");
        for unfit in [
            Descriptor { number: fits.number + 1, ..fits.clone() },
            Descriptor { data_pages: fits.data_pages + 1, ..fits.clone() },
            Descriptor { key_pages: fits.key_pages + 1, ..fits.clone() },
            Descriptor { fence_pages: 2, ..fits.clone() },
            Descriptor { fence_pages: 0, ..fits.clone() },
            Descriptor { key_extents: vec![3], ..fits.clone() },
            Descriptor { key_extents: vec![geometry.extents(1 << 30)], ..fits.clone() },
        ] {
            assert!(claim(&unfit).is_none(), "{unfit:?}");
        }
    }
}
