"""Recurrent layers: LSTM, GRU and RNN, all positions of a layer in one launch."""
