"""`headway render kubernetes`: a fleet's file as manifests for a cluster."""
