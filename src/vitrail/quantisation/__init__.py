"""int8 and bf16 under an accuracy budget: calibration, SmoothQuant, sensitivity, fake quantisation. A plan."""
