"""The NRI plugin: its thread and connection (plugin, connect, stream), calls (session, call_decoding, nri_calls,
decider, answer_encoding), the queue to the event loop (event_queue), and NRI's events (nri_events) into those of the
domain (translation, cpuset_reports)."""
