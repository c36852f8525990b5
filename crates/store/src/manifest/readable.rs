//! A manifest that may be damaged: what of it can be read, and how it is begun anew.

use super::Manifest;
use super::area::{AreaReader, Recovered};
use super::client::ManifestClients;
use crate::error::Error;
use crate::media::geometry::Geometry;
use crate::media::io::Io;
use tapetum_drive::LocalMemory;

impl Manifest {
    /// As [`Manifest::recover`], of a manifest that may be damaged: what its readable beginning says, and how the rest fails if there
    /// is more. It can only be begun anew then.
    pub async fn recover_readable<C: ManifestClients>(
        io: &Io,
        local: &LocalMemory,
        geometry: &Geometry,
        store_id: u64,
    ) -> Result<(Recovered<C>, Option<Error>), Error> {
        let damage = match Manifest::recover(io, local, geometry, store_id).await {
            Ok(recovered) => return Ok((recovered, None)),
            Err(damage @ Error::Corrupt(_)) => damage,
            Err(error) => return Err(error),
        };
        let mut reader =
            AreaReader { io: io.clone(), local: local.clone(), geometry: *geometry, store_id, window: None };
        let mut best: Option<Recovered<C>> = None;
        for area in 0..2 {
            let Some(epoch) = reader.epoch_of(area).await? else { continue };
            let is_newer = best.as_ref().is_none_or(|best| best.manifest.epoch < epoch);
            if is_newer && let Some(found) = reader.read_beginning(area, epoch).await? {
                best = Some(found);
            }
        }
        let mut recovered = best.ok_or(damage.clone())?;
        for area in 0..2 {
            reader.survey(area, &mut recovered).await?;
        }
        Ok((recovered, Some(damage)))
    }

    /// Writes the whole state to the other area.
    pub async fn begin_anew(&mut self, clients: &impl ManifestClients) -> Result<(), Error> {
        self.snapshot(clients).await
    }
}
