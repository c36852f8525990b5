//! A manifest that may be damaged: what of it can be read, and how it is begun anew.

use super::area::{AreaReader, Surveyed};
use super::{Manifest, Recovered};
use crate::error::Error;
use crate::hashed::catalog::Catalog;
use crate::media::geometry::Geometry;
use crate::media::io::Io;
use crate::planted::Planted;
use tapetum_drive::LocalMemory;

impl Manifest {
    /// As [`Manifest::recover`], of a manifest that may be damaged: what its readable beginning says, and how the rest fails if there
    /// is more. It can only be begun anew then.
    pub async fn recover_readable(
        io: &Io,
        local: &LocalMemory,
        geometry: &Geometry,
        store_id: u64,
    ) -> Result<(Recovered, Option<Error>), Error> {
        let planted = Planted::default();
        let damage = match Manifest::recover(io, local, geometry, store_id, planted).await {
            Ok(recovered) => return Ok((recovered, None)),
            Err(damage @ Error::Corrupt(_)) => damage,
            Err(error) => return Err(error),
        };
        let mut reader =
            AreaReader { io: io.clone(), local: local.clone(), geometry: *geometry, store_id, planted, window: None };
        let mut best: Option<Recovered> = None;
        for area in 0..2 {
            let Some(epoch) = reader.epoch_of(area).await? else { continue };
            let is_newer = best.as_ref().is_none_or(|best| best.manifest.epoch < epoch);
            if is_newer && let Some(found) = reader.read_beginning(area, epoch).await? {
                best = Some(found);
            }
        }
        let mut recovered = best.ok_or(damage.clone())?;
        let (manifest, catalog) = (&mut recovered.manifest, &mut recovered.catalog);
        let mut known = Surveyed { epoch_last: manifest.epoch, generation: manifest.generation, ..Surveyed::default() };
        for area in 0..2 {
            reader.survey(area, &mut known).await?;
        }
        (manifest.epoch_last, manifest.generation) = (known.epoch_last, known.generation);
        catalog.stamp_base = catalog.stamp_base.max(known.stamp_base);
        catalog.stamp_opened = catalog.stamp_opened.max(known.stamp_opened);
        Ok((recovered, Some(damage)))
    }

    /// Writes the whole state to the other area, as that of another generation.
    pub async fn begin_anew(&mut self, catalog: &Catalog, generation: u64) -> Result<(), Error> {
        self.generation = generation;
        self.snapshot(catalog).await
    }
}
