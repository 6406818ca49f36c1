"""`--predictor auto`: whether forecasts pay in this run is measured while decoding, and decided by cost."""
