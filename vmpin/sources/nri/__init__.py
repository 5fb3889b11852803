"""NRI: the plugin's thread (plugin), its connections (connection), the calls over a connection (session, call_codec),
events and their queue to the event loop (nri_events, event_queue), what follows from them (translation,
nri_reports), and the processes that they name (processes)."""
