//! A manifest that may be damaged: what of it can be read, and how it is begun anew.

use super::area::{AreaReader, Recovered};
use super::client::ManifestClients;
use super::{AREAS, Manifest};
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
        empty: impl Fn() -> C,
    ) -> Result<(Recovered<C>, Option<Error>), Error> {
        let damage = match Manifest::recover(io, local, geometry, store_id, &empty).await {
            Ok(recovered) => return Ok((recovered, None)),
            Err(damage @ Error::Corrupt(_)) => damage,
            Err(error) => return Err(error),
        };
        let mut reader = AreaReader::new(io, local, geometry, store_id);
        let mut best: Option<Recovered<C>> = None;
        let mut epochs = reader.epochs().await?;
        while let (None, Some(epoch)) = (&best, epochs.pop_last()) {
            best = reader.read_beginning(epoch, &empty).await?;
        }
        let mut recovered = best.ok_or(damage.clone())?;
        for area in 0..AREAS {
            reader.survey(area, &mut recovered).await?;
        }
        Ok((recovered, Some(damage)))
    }

    /// Writes the whole state to both areas, one after the other. Which one was the first.
    pub async fn begin_anew(&mut self, clients: &impl ManifestClients) -> Result<usize, Error> {
        self.snapshot(clients).await
    }
}
